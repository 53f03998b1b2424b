"""The models of the GPU's benchmark, with random weights: transformers' and a block of a diffusion U-Net."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Row:
    """`make` gives the program and its arguments; `moved`: bytes it must read and write; `graphs`:
    also in mode reduce-overhead; `first`: how many calls compile; `rivals`: by name, what makes another
    program that eager has for the same."""

    name: str
    make: Callable[[], tuple[Callable, tuple]]
    moved: int = 0
    host: bool = False  # what counts is the time of submitting
    trains: bool = False  # a forward and a backward
    graphs: bool = False
    first: int = 1
    rivals: tuple[tuple[str, Callable[[], Callable]], ...] = ()


def tensor(*sizes: int, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(sizes, device="cuda") * scale).to(dtype)


class Residual(nn.Module):
    """Group norm, silu and convolution twice, the time step added in between."""

    def __init__(self, channels: int):
        super().__init__()
        self.first, self.second = (nn.GroupNorm(32, channels) for _ in range(2))
        self.into, self.out = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.time = nn.Linear(4 * channels, channels)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        h = self.into(F.silu(self.first(x))) + self.time(F.silu(time))[:, :, None, None]
        return x + self.out(F.silu(self.second(h)))


class Attention(nn.Module):
    """`heads` heads over tokens x: [N, T, C] that look at `context`: [N, S, D]."""

    def __init__(self, channels: int, context: int, heads: int = 8):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(channels)
        self.query = nn.Linear(channels, channels, bias=False)
        self.key, self.value = (nn.Linear(context, channels, bias=False) for _ in range(2))
        self.out = nn.Linear(channels, channels)

    def forward(self, x: torch.Tensor, context: torch.Tensor | None = None) -> torch.Tensor:
        h = self.norm(x)
        seen = h if context is None else context
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.query(h), self.key(seen), self.value(seen)))
        found = F.scaled_dot_product_attention(query, key, value)
        return x + self.out(found.transpose(1, 2).flatten(2))


class UNetBlock(nn.Module):
    """A level of a latent diffusion model: residual block, then a transformer block over the pixels with self-
    and cross-attention and a gated feed-forward layer. x: [N, C, H, W]; time: [N, 4C]; text: [N, S, D]."""

    def __init__(self, channels: int = 320, text: int = 768):
        super().__init__()
        self.residual = Residual(channels)
        self.norm = nn.GroupNorm(32, channels, eps=1e-6)
        self.into, self.out = (nn.Conv2d(channels, channels, 1) for _ in range(2))
        self.own, self.cross = Attention(channels, channels), Attention(channels, text)
        self.last = nn.LayerNorm(channels)
        self.wide, self.narrow = nn.Linear(channels, 8 * channels), nn.Linear(4 * channels, channels)

    def forward(self, x: torch.Tensor, time: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        x = self.residual(x, time)
        h = self.into(self.norm(x)).flatten(2).transpose(1, 2)
        h = self.cross(self.own(h), text)
        value, gate = self.wide(self.last(h)).chunk(2, -1)
        h = h + self.narrow(value * F.gelu(gate))
        return x + self.out(h.transpose(1, 2).unflatten(2, x.shape[-2:]))


def models() -> Iterator[Row]:
    """Models with random weights; rows that need transformers are left out without it."""
    def unet():
        model = UNetBlock().cuda().bfloat16().eval()
        return model, (tensor(4, 320, 64, 64), tensor(4, 1280), tensor(4, 77, 768))

    yield Row("diffusion U-Net block 4x320x64x64 bf16", unet)
    try:
        import transformers as t
    except ImportError:
        return

    def bert():
        config = t.BertConfig()
        model = t.BertModel(config).cuda().bfloat16().eval()
        ids = torch.randint(0, 30000, (16, 128), device="cuda")
        return (lambda ids: model(ids).last_hidden_state), (ids,)

    def gpt2():
        model = t.GPT2LMHeadModel(t.GPT2Config(use_cache=False)).cuda().bfloat16().eval()
        ids = torch.randint(0, 50000, (8, 512), device="cuda")
        return (lambda ids: model(ids).logits), (ids,)

    def llama():
        config = t.LlamaConfig(
            hidden_size=2048, intermediate_size=5632, num_hidden_layers=16, num_attention_heads=16,
            num_key_value_heads=16, vocab_size=32000, use_cache=False)
        model = t.LlamaForCausalLM(config).cuda().bfloat16().eval()
        ids = torch.randint(0, 32000, (4, 512), device="cuda")
        return (lambda ids: model(ids).logits), (ids,)

    def decode():
        config = t.LlamaConfig(
            hidden_size=2048, intermediate_size=5632, num_hidden_layers=16, num_attention_heads=16,
            num_key_value_heads=16, vocab_size=32000)
        model = t.LlamaForCausalLM(config).cuda().bfloat16().eval()
        named = "cache" if "cache" in inspect.signature(model.forward).parameters else (
            "past_key_values")
        past = [(tensor(1, 16, 512, 128), tensor(1, 16, 512, 128)) for _ in range(16)]

        def step(ids, past):
            cache = t.DynamicCache()
            for layer, (keys, values) in enumerate(past):
                cache.update(keys, values, layer)
            return model(ids, use_cache=True, **{named: cache}).logits

        return step, (torch.randint(0, 32000, (1, 1), device="cuda"), past)

    def vit():
        model = t.ViTModel(t.ViTConfig()).cuda().bfloat16().eval()
        pixels = tensor(32, 3, 224, 224)
        return (lambda p: model(p).last_hidden_state), (pixels,)

    def resnet():
        model = t.ResNetModel(t.ResNetConfig()).cuda().bfloat16().eval()
        return (lambda p: model(p).last_hidden_state), (tensor(32, 3, 224, 224),)

    def convnext():
        model = t.ConvNextModel(t.ConvNextConfig()).cuda().bfloat16().eval()
        return (lambda p: model(p).last_hidden_state), (tensor(32, 3, 224, 224),)

    yield Row("BERT-base 16x128 bf16", bert)
    yield Row("GPT-2 8x512 bf16", gpt2)
    yield Row("Llama 16 layers of 2048, 4x512 bf16", llama)
    yield Row("Llama decode, 1 token after 512 bf16", decode, graphs=True)
    yield Row("ViT-B 32 bf16", vit)
    yield Row("ResNet-50 32 bf16", resnet)
    yield Row("ConvNeXt-T 32 bf16", convnext)


class Loss(torch.nn.Module):
    """`model` and its loss, under autocast to `dtype` (None: as it is)."""

    def __init__(self, model: torch.nn.Module, loss: Callable, dtype: torch.dtype | None):
        super().__init__()
        self.model, self.loss, self.dtype = model, loss, dtype

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", dtype=self.dtype, enabled=self.dtype is not None):
            return self.loss(self.model, *args)


def trained_models() -> Iterator[Row]:
    """A forward and a backward in training mode, dropout included, float32 weights under bf16 autocast."""
    try:
        import transformers as t
    except ImportError:
        return

    def language(make: Callable, batch: int, length: int, words: int) -> Callable:
        def made():
            ids = torch.randint(0, words, (batch, length), device="cuda")

            def loss(model, ids):
                logits = model(ids).logits
                return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())

            return Loss(make().cuda().train(), loss, torch.bfloat16), (ids,)

        return made

    def resnet(dtype: torch.dtype | None, is_last: bool) -> Callable:
        def made():
            layout = torch.channels_last if is_last else torch.contiguous_format
            model = t.ResNetForImageClassification(t.ResNetConfig(num_labels=1000)).cuda().train()
            pixels = tensor(32, 3, 224, 224, dtype=torch.float32).to(memory_format=layout)
            labels = torch.randint(0, 1000, (32,), device="cuda")

            def loss(model, pixels, labels):
                return F.cross_entropy(model(pixels).logits.float(), labels)

            return Loss(model.to(memory_format=layout), loss, dtype), (pixels, labels)

        return made

    llama = t.LlamaConfig(
        hidden_size=1024, intermediate_size=2816, num_hidden_layers=8, num_attention_heads=16,
        num_key_value_heads=16, vocab_size=32000, use_cache=False)
    yield Row(
        "train GPT-2 8x512 amp",
        language(lambda: t.GPT2LMHeadModel(t.GPT2Config(use_cache=False)), 8, 512, 50000), trains=True)
    yield Row(
        "train BERT-base 16x128 amp",
        language(lambda: t.BertForMaskedLM(t.BertConfig()), 16, 128, 30000), trains=True)
    yield Row(
        "train Llama 8 layers of 1024, 4x512 amp",
        language(lambda: t.LlamaForCausalLM(llama), 4, 512, 32000), trains=True)
    yield Row("train ResNet-50 32 amp", resnet(torch.bfloat16, False), trains=True)
    yield Row("train ResNet-50 32 amp channels_last", resnet(torch.bfloat16, True), trains=True)
