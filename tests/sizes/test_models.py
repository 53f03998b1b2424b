"""Models whose batch and length change: few captures, fewer compiles, eager's results."""

import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import preheat

transformers = pytest.importorskip("transformers")
CALLS = 200


@pytest.fixture(autouse=True)
def strict(monkeypatch):
    monkeypatch.setenv("PREHEAT_STRICT", "1")


def bert():
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        vocab_size=50, max_position_embeddings=64)
    return transformers.BertModel(config).eval(), {}


def llama():
    config = transformers.LlamaConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=64, vocab_size=50)
    return transformers.LlamaForCausalLM(config).eval(), {"use_cache": False}


def counted(call):
    """How many captures and compiles `call` took; nothing of it ran op by op."""
    before = preheat.counters()
    call()
    after = preheat.counters()
    assert after["fallbacks"] == before["fallbacks"]
    return tuple(after[name] - before[name] for name in ("captures", "compiles"))


# One capture and compile of a size, one for all. Llama asks whether the batch is 1, which is another
# capture, and tests its mask, so that each but the first is a chain of nodes.
@pytest.mark.parametrize("make, most", [(bert, (2, 2)), (llama, (3, 6))])
@pytest.mark.parametrize("backend", ["eager", "preheat"])
def test_random_batches_and_lengths(make, most, backend):
    torch.manual_seed(0)
    model, options = make()
    chance = random.Random(3)
    compiled = preheat.compile(model, backend=backend, options={"cache": False})

    @torch.no_grad()
    def calls():
        for _ in range(CALLS if backend == "preheat" else CALLS // 10):
            batch, length = chance.randint(1, 6), chance.randint(2, 40)
            ids = torch.randint(0, 50, (batch, length))
            expected = model(input_ids=ids, **options)[0]
            found = compiled(input_ids=ids, **options)[0]
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
            assert found.stride() == expected.stride()

    captures, compiles = counted(calls)
    assert captures <= most[0] and compiles <= most[1]


class Block(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, padding=1)
        self.norm = nn.GroupNorm(2, outside)
        self.second = nn.Conv2d(outside, outside, 3, padding=1)
        self.batch_norm = nn.BatchNorm2d(outside)

    def forward(self, x):
        return F.silu(self.batch_norm(self.second(F.silu(self.norm(self.first(x))))))


class UNet(nn.Module):
    """Two levels; sizes need not be even."""

    def __init__(self):
        super().__init__()
        self.down, self.middle = Block(3, 8), Block(8, 16)
        self.up, self.out = Block(24, 8), nn.Conv2d(8, 1, 1)

    def forward(self, x):
        wide = self.down(x)
        deep = self.middle(F.max_pool2d(wide, 2))
        deep = F.interpolate(deep, size=wide.shape[-2:], mode="bilinear")
        return self.out(self.up(torch.cat([deep, wide], 1))).sigmoid() + F.avg_pool2d(
            x, 3, stride=1, padding=1).mean(1, keepdim=True)


def test_image_sizes():
    torch.manual_seed(0)
    model, chance = UNet().eval(), random.Random(5)
    compiled = preheat.compile(model, options={"cache": False})

    @torch.no_grad()
    def calls():
        for _ in range(50):
            x = torch.randn(chance.randint(2, 3), 3, chance.randint(6, 33), chance.randint(6, 33))
            expected, found = model(x), compiled(x)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
            assert found.stride() == expected.stride()

    assert counted(calls) == (2, 2)


def test_a_list_of_tensors_of_any_length_is_a_few_captures():
    def program(xs):
        total = xs[0]
        for x in xs[1:]:
            total = total + x.relu()
        return total.softmax(-1)

    compiled = preheat.compile(program, options={"cache": False, "recompile_limit": 30})
    chance = random.Random(1)

    @torch.no_grad()
    def calls():
        for count in (*range(1, 21), *(chance.randint(1, 20) for _ in range(40))):
            xs = list(torch.randn(count, 4, 6))
            torch.testing.assert_close(compiled(xs), program(xs))

    captures, compiles = counted(calls)
    assert captures <= 5 and compiles <= 6


# The prompt is one; a token is another one with a static cache. With one that grows it is two: the first
# token, and all others.
@pytest.mark.parametrize("cache, most", [("dynamic", 3), ("static", 2)])
def test_generation_with_a_cache(cache, most):
    torch.manual_seed(0)
    model, _ = llama()
    ids = torch.randint(0, 50, (1, 5))
    settings = {"max_new_tokens": 200, "do_sample": False, "cache_implementation": cache,
                "pad_token_id": 0, "eos_token_id": None, "disable_compile": True}
    expected = model.generate(ids, **settings)
    found, eager_forward = [], model.forward
    model.forward = preheat.compile(eager_forward, options={"cache": False})
    try:
        captures, compiles = counted(lambda: found.append(model.generate(ids, **settings)))
    finally:
        model.forward = eager_forward
    assert torch.equal(*found, expected)
    assert captures <= most and compiles <= most
