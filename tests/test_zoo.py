"""Models that people run, tiny and with random weights, each compiled as one graph.

`ZOO[name]()` is (module, args, kwargs), `placed(name)` the same where PREHEAT_TEST_DEVICE says. Every model must be captured whole under no_grad; what is
known to run eager stands in `EAGER`, with the reason.
"""

import pytest
import torch
import transformers
from torch import nn

import preheat
from same import Program, same_program
from tests.training.place import DEVICE

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}
IDS = {"vocab_size": 60}


def tokens(rows=2, columns=7):
    return torch.randint(0, 60, (rows, columns), generator=torch.Generator().manual_seed(0))


def image(size=32):
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))


def sequence(rows=2, steps=5, width=16):
    return torch.randn(rows, steps, width, generator=torch.Generator().manual_seed(0))


def _bert(**kwargs):
    return transformers.BertModel(transformers.BertConfig(**SMALL, **IDS)), (tokens(),), kwargs


def _masked_bert():
    mask = torch.ones(2, 7, dtype=torch.int64)
    mask[1, 4:] = 0
    return _bert(attention_mask=mask)


def _gpt2(**kwargs):
    config = transformers.GPT2Config(
        n_embd=32,
        n_layer=2,
        n_head=2,
        n_positions=64,
        vocab_size=60,
        bos_token_id=0,
        eos_token_id=0,
    )
    return transformers.GPT2LMHeadModel(config), (tokens(),), kwargs


def _llama(**kwargs):
    config = transformers.LlamaConfig(
        **SMALL, **IDS, num_key_value_heads=1, max_position_embeddings=64
    )
    return transformers.LlamaForCausalLM(config), (tokens(),), kwargs


class _Decode(nn.Module):
    """One token with keys and values given as tensors."""

    def __init__(self):
        super().__init__()
        self.model = _llama()[0]

    def forward(self, token, past):
        cache = transformers.DynamicCache()
        for layer, (keys, values) in enumerate(past):
            cache.update(keys, values, layer)
        out = self.model(token, cache=cache, use_cache=True)
        return out.logits, [(layer.keys, layer.values) for layer in cache.layers]


def _decode():
    past = [(sequence(2, 4, 16)[:, None], sequence(2, 4, 16)[:, None]) for _ in range(2)]
    return _Decode(), (tokens(2, 1), past), {}


def _vit():
    config = transformers.ViTConfig(**SMALL, image_size=32, patch_size=8)
    return transformers.ViTModel(config), (image(),), {}


def _convnext():
    config = transformers.ConvNextConfig(
        depths=[1, 1, 1, 1], hidden_sizes=[8, 16, 32, 64], image_size=32
    )
    return transformers.ConvNextModel(config), (image(),), {}


def _resnet():
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2], layer_type="basic"
    )
    return transformers.ResNetModel(config), (image(),), {}


def _encoder():
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, activation="gelu")
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), (sequence(),), {}


ZOO = {
    "mlp": lambda: (
        nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)),
        (sequence(),),
        {},
    ),
    "bert": _bert,
    "bert with a padding mask": _masked_bert,
    "bert as a tuple": lambda: _bert(return_dict=False),
    "bert with hidden states": lambda: _bert(output_hidden_states=True),
    "gpt2": _gpt2,
    "gpt2 without cache": lambda: _gpt2(use_cache=False),
    "llama": _llama,
    "llama without cache": lambda: _llama(use_cache=False),
    "llama one token": _decode,
    "vit": _vit,
    "convnext": _convnext,
    "resnet": _resnet,
    "lstm": lambda: (nn.LSTM(16, 8, 2, batch_first=True), (sequence(),), {}),
    "gru": lambda: (nn.GRU(16, 8, batch_first=True), (sequence(),), {}),
    "lstm cell": lambda: (nn.LSTMCell(16, 8), (sequence()[:, 0],), {}),
    "attention": lambda: (nn.MultiheadAttention(16, 2, batch_first=True), (sequence(),) * 3, {}),
    "transformer encoder": _encoder,
    "convolutions": lambda: (
        nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.SiLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(4, 4, 3, groups=2),
            nn.GroupNorm(2, 4),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        ),
        (image(),),
        {},
    ),
    "embedding bag of things": lambda: (
        nn.Sequential(nn.Embedding(60, 16), nn.Dropout(0.5), nn.LayerNorm(16), nn.Softmax(-1)),
        (tokens(),),
        {},
    ),
}

# name -> why it runs eager today
EAGER: dict[str, str] = {
    "bert with hidden states": "transformers registers forward hooks on its own modules, a write",
}


def placed(name):
    model, args, kwargs = ZOO[name]()
    return model.to(DEVICE), *torch.utils._pytree.tree_map_only(
        torch.Tensor, lambda tensor: tensor.to(DEVICE), (args, kwargs))


@pytest.mark.parametrize("name", ZOO)
def test_model_is_one_graph_and_as_eager(name):
    def make():
        model, args, kwargs = placed(name)
        return Program(model.eval(), args, kwargs)

    same_program(make, calls=2, captured=name not in EAGER)


@pytest.mark.parametrize("name", ["mlp", "bert", "llama", "convolutions", "transformer encoder"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_model_in_another_dtype(name, dtype):
    def make():
        model, args, kwargs = placed(name)
        args = tuple(a.to(dtype) if a.is_floating_point() else a for a in args)
        return Program(model.eval().to(dtype), args, kwargs)

    same_program(make, calls=2, captured=name not in EAGER)


@pytest.mark.parametrize("name", ["bert", "llama", "convolutions"])
def test_model_in_inference_mode(name):
    def make():
        model, args, kwargs = placed(name)
        model.eval()
        return Program(torch.inference_mode()(model.forward), args, kwargs)

    same_program(make, calls=2)


@pytest.mark.parametrize("name", ["mlp", "gpt2", "resnet"])
def test_model_in_training_mode_draws_and_updates_as_eager(name):
    def make():
        model, args, kwargs = placed(name)
        return Program(model.train(), args, kwargs)

    same_program(make, calls=3)


def test_tokens_by_a_static_cache_are_compiled():
    model = _llama()[0].to(DEVICE).eval()
    settings = dict(
        max_new_tokens=6, do_sample=False, cache_implementation="static", disable_compile=True)
    compiled = preheat.compile(model, options={"cache": False})
    before = preheat.counters()
    with torch.no_grad():
        found, expected = (m.generate(tokens(1, 7).to(DEVICE), **settings) for m in (compiled, model))
    after = preheat.counters()
    assert torch.equal(found, expected)
    assert after["captures"] - before["captures"] == 2  # the prompt, and a token
    assert after["fallbacks"] == before["fallbacks"] and after["breaks"] == before["breaks"]
