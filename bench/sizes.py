"""Sizes that change: plans for all sizes beside plans of one, and how often each compiler compiles.

    python -m bench.sizes                      both tables, as Markdown
    python -m bench.sizes speed                dynamic against static plans, in alternation
    python -m bench.sizes count bert           200 random batches and lengths of BERT

One thread. Speed is processor time, the least of 150 rounds of a millisecond: others on the machine
only add to it. A count is of graphs that were compiled, each backend in a process of its own.
"""

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import nn

import preheat

_ROUNDS, _ROUND_S, _LIMIT_S = 150, 0.001, 900
Call = Callable[..., Any]


# ---------------------------------------------------------------------------- speed
def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 0.5, -1)


def layer_norm(x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:])


def chain(x: torch.Tensor) -> torch.Tensor:
    return (x + 1).relu() * x.sigmoid() - x


def column_sum(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).sum(0)


def bert(layers: int = 4, width: int = 256) -> nn.Module:
    config = transformers.BertConfig(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=4,
        intermediate_size=4 * width, vocab_size=1000)
    return transformers.BertModel(config).eval()


def gpt2(layers: int = 4, width: int = 128) -> nn.Module:
    config = transformers.GPT2Config(
        n_embd=width, n_layer=layers, n_head=4, vocab_size=1000, n_positions=256, use_cache=False,
        bos_token_id=0, eos_token_id=0)
    return transformers.GPT2LMHeadModel(config).train()


def llama() -> nn.Module:
    config = transformers.LlamaConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=64, vocab_size=50)
    return transformers.LlamaForCausalLM(config).eval()


PROGRAMS: dict[str, Call] = {
    "softmax": softmax, "layer norm": layer_norm, "chain of four": chain, "column sum": column_sum}
SHAPES = ((512, 1024), (511, 1021), (4096, 64), (4093, 67), (64, 16384))
LENGTHS = ((4, 64), (3, 61))


def speed() -> Iterator[str]:
    """Rows: program, size, microseconds of a static and of a dynamic plan, and their ratio."""
    yield "| program | size | static us | dynamic us | dynamic / static |\n|---|---|---|---|---|"
    for name, program in PROGRAMS.items():
        for shape in SHAPES:
            yield _compared(name, program, torch.randn(shape), torch.randn(333, 257))
    model = bert()
    for size in LENGTHS:
        ids, other = torch.randint(0, 1000, size), torch.randint(0, 1000, (5, 40))
        yield _compared("BERT, 4 layers of 256", model, ids, other)
    for size in LENGTHS:
        ids, other = torch.randint(0, 1000, size), torch.randint(0, 1000, (5, 40))
        with torch.enable_grad():
            yield _compared(
                "GPT-2 in training, 4 layers of 128, dropout", gpt2(), ids, other, _stepping)


def _stepping(call: Call) -> Call:
    """A forward and a backward of a language model."""
    return lambda ids: call(input_ids=ids, labels=ids).loss.backward()


def _compared(
    name: str, program: Call, given: torch.Tensor, other: torch.Tensor, step: Callable[[Call], Call] = lambda call: call,
) -> str:
    static = step(preheat.compile(program, dynamic=False, options={"cache": False}))
    dynamic = step(preheat.compile(program, options={"cache": False}))
    for x in (other, torch.cat([other, other]).T[:, :97].T, given):  # not equal to what is measured
        dynamic(x)
    for _ in range(3):
        static(given)
    for _ in range(80):
        dynamic(given)
    count = max(1, int(_ROUND_S / _round(static, given, 3)))
    rounds = [(_round(static, given, count), _round(dynamic, given, count)) for _ in range(_ROUNDS)]
    a, b = (min(times) * 1e6 for times in zip(*rounds))
    size = " x ".join(map(str, given.shape))
    return f"| {name} | {size} | {a:.1f} | {b:.1f} | {b / a:.2f} |"


def _round(call: Call, given: torch.Tensor, count: int) -> float:
    begin = time.process_time()
    for _ in range(count):
        call(given)
    return (time.process_time() - begin) / count


# ---------------------------------------------------------------------------- counts
def _pairs(model: nn.Module, wrap: Callable[[Call], Call], **options: Any) -> None:
    chance, call = random.Random(3), wrap(model)
    for _ in range(200):
        size = chance.randint(1, 6), chance.randint(2, 40)
        call(input_ids=torch.randint(0, 50, size), **options)


def _generated(wrap: Callable[[Call], Call], cache: str) -> None:
    model = llama()
    model.forward = wrap(model.forward)
    model.generate(
        torch.randint(0, 50, (1, 5)), max_new_tokens=200, do_sample=False, eos_token_id=None,
        cache_implementation=cache, pad_token_id=0, disable_compile=True)


class Images(nn.Module):
    """Down by two and up again, joined with what there was: a U-Net of one level."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.middle = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.norm, self.up = nn.GroupNorm(2, 16), nn.Conv2d(24, 1, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = F.silu(self.down(x))
        deep = F.silu(self.norm(self.middle(F.max_pool2d(wide, 2))))
        deep = F.interpolate(deep, size=wide.shape[-2:], mode="bilinear")
        return self.up(torch.cat([deep, wide], 1)).sigmoid()


def _images(wrap: Callable[[Call], Call]) -> None:
    chance, call = random.Random(5), wrap(Images().eval())
    for _ in range(50):
        call(torch.randn(chance.randint(2, 3), 3, chance.randint(6, 33), chance.randint(6, 33)))


def of_list(xs: list[torch.Tensor]) -> torch.Tensor:
    total = torch.zeros_like(xs[0])
    for x in xs:
        total = total + F.gelu(x) * x.sigmoid()
    return torch.stack(xs).mean(0) + total / len(xs)


def _lists(wrap: Callable[[Call], Call]) -> None:
    call = wrap(of_list)
    for length in random.Random(7).sample(range(1, 21), 20):
        call([torch.randn(8, 16) for _ in range(length)])


def _trained(wrap: Callable[[Call], Call]) -> None:
    call, chance = wrap(gpt2(2, 32)), random.Random(9)
    with torch.enable_grad():
        for length in chance.sample(range(4, 64), 20) * 2:
            ids = torch.randint(0, 50, (2, length))
            call(input_ids=ids, labels=ids).loss.backward()


COUNTED: dict[str, tuple[str, Callable[[Callable[[Call], Call]], None]]] = {
    "bert": ("BERT, 200 random batches and lengths, batch 1 included",
             lambda wrap: _pairs(bert(2, 32), wrap)),
    "llama": ("Llama, the same", lambda wrap: _pairs(llama(), wrap, use_cache=False)),
    "images": ("a small U-Net, 50 image sizes", _images),
    "lists": ("a list of 1 to 20 tensors, in a loop and stacked", _lists),
    "trained": ("GPT-2 in training with dropout, 20 lengths, each twice", _trained),
    "growing": ("Llama, 200 tokens, a cache that grows", lambda wrap: _generated(wrap, "dynamic")),
    "static": ("Llama, 200 tokens, a static cache", lambda wrap: _generated(wrap, "static")),
}


def count(name: str, backend: str) -> str:
    """How often `backend` compiled in the scenario `name`, and in how many seconds."""
    torch.manual_seed(0)
    run, begin = COUNTED[name][1], time.perf_counter()
    if backend == "preheat":
        before = preheat.counters()
        run(lambda call: preheat.compile(call, options={"cache": False}))
        after = preheat.counters()
        made, eager = (after[k] - before[k] for k in ("compiles", "fallbacks"))
        text = f"{made}" if not eager else f"{made}, {eager} op by op"
    else:
        run(torch.compile)
        from torch._dynamo.utils import counters  # loaded by torch.compile

        text = str(counters["stats"]["unique_graphs"])
        if counters["unimplemented"] or counters["frames"]["total"] > counters["frames"]["ok"]:
            text += ", parts eager"
    return f"{text} ({time.perf_counter() - begin:.1f} s)"


def counts() -> Iterator[str]:
    """Rows: scenario, compiles of torch.compile and of Preheat."""
    yield "| scenario | torch.compile | preheat |\n|---|---|---|"
    for name, (meaning, _) in COUNTED.items():
        cells = [_apart(name, backend) for backend in ("torch.compile", "preheat")]
        yield f"| {meaning} | {' | '.join(cells)} |"


def _apart(name: str, backend: str) -> str:
    try:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "bench.sizes", "count", name, backend],
            capture_output=True, text=True, timeout=_LIMIT_S,
            env={**os.environ, "OMP_NUM_THREADS": "1"})
    except subprocess.TimeoutExpired:
        return f"over {_LIMIT_S} s"
    return done.stdout.strip() if done.returncode == 0 else "failed: " + done.stderr.strip()[-80:]


def main(what: str = "", *rest: str) -> None:
    torch.set_num_threads(1)
    with torch.no_grad():
        if what == "count":
            print(count(rest[0], *(rest[1:] or ("preheat",))))
            return
        for rows in ([speed()] if what == "speed" else [counts()] if what == "counts" else [
                speed(), counts()]):
            for row in rows:
                print(row, flush=True)
            print()


if __name__ == "__main__":
    main(*sys.argv[1:])
