"""Sizes that change on a GPU: plans for all sizes beside plans of one, counts of compiles, training.

    python -m bench.gpu_sizes speed [softmax ..]        dynamic against static plans, device time by events
    python -m bench.gpu_sizes count bert preheat        100 random batches and lengths: compiles and seconds
    python -m bench.gpu_sizes train preheat             GPT-2, 20 lengths four times over
    python -m bench.gpu_sizes train preheat flash       the same in bfloat16, with flash attention

Each count is of a process of its own; its seconds hold all calls, compilation included.
"""

import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch.nn.attention import SDPBackend, sdpa_kernel

import preheat
from preheat.base.events import bus
from bench.sizes import chain, column_sum, layer_norm, softmax

SHAPES = ((32768, 1024), (32767, 1021), (262144, 64), (262141, 67), (4096, 8192), (4093, 8191))
DTYPES = (torch.float32, torch.bfloat16)
ROUNDS = 40
PAIRS, LENGTHS = 100, 20
Call = Callable[..., Any]


def gelu(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x * 0.5 + 1)


def turned(x: torch.Tensor) -> torch.Tensor:
    return x.t().contiguous()


PROGRAMS: dict[str, Call] = {
    "softmax": softmax, "layer norm": layer_norm, "chain of four": chain, "gelu": gelu,
    "column sum": column_sum, "sum of rows": lambda x: x.sum(-1), "sum of all": lambda x: x.sum(),
    "turned copy": turned}


def speed(*names: str) -> Iterator[str]:
    """Rows: program, microseconds of a static and of a dynamic plan at each size, and their ratio."""
    yield "| static us/dynamic us ratio | " + " | ".join(f"{a} x {b}" for a, b in SHAPES) + " |"
    for name, program in PROGRAMS.items():
        if names and name not in names:
            continue
        for dtype in DTYPES:
            dynamic = preheat.compile(program, options={"cache": False})
            for size in ((333, 257), (4000, 998)):
                dynamic(torch.randn(size, device="cuda", dtype=dtype))
            cells = []
            for shape in SHAPES:
                x = torch.randn(shape, device="cuda", dtype=dtype)
                static = preheat.compile(program, dynamic=False, options={"cache": False})
                before = preheat.counters()["compiles"]
                a = b = float("inf")
                error = float((dynamic(x).double() - static(x).double()).abs().max())
                for _ in range(3):
                    a, b = min(a, _device_us(static, x)), min(b, _device_us(dynamic, x))
                made = preheat.counters()["compiles"] - before - 1
                cells.append(f"{a:.0f}/{b:.0f} {b / a:.2f}" + (f" ({made} compiles)" if made else "")
                             + (f" error {error:.1e}" if error > 1e-2 else ""))
            yield f"| {name} {str(dtype)[6:]} | " + " | ".join(cells) + " |"


def _device_us(call: Call, x: torch.Tensor) -> float:
    for _ in range(3):
        call(x)
    events = [(torch.cuda.Event(True), torch.cuda.Event(True)) for _ in range(ROUNDS)]
    for first, last in events:
        first.record()
        call(x)
        last.record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in events) * 1e3


def model_of(name: str) -> tuple[torch.nn.Module, dict[str, Any]]:
    torch.manual_seed(0)
    if name == "bert":
        config = transformers.BertConfig(
            hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024, vocab_size=1000)
        return transformers.BertModel(config).eval().cuda(), {}
    config = transformers.LlamaConfig(
        hidden_size=256, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=512, vocab_size=1000)
    return transformers.LlamaForCausalLM(config).eval().cuda(), {"use_cache": False}


_PINNED: set[str] = set()  # ops without a size rule
_FALLEN: set[str] = set()  # why something ran op by op


def _note(event: Any) -> None:
    _PINNED.update(event.data.get("pinned", ()))
    if event.kind == "fallback":
        _FALLEN.add(f"{event.data['what']}: {event.data['why']}"[:200])


def wrapped(call: Call, backend: str) -> Call:
    return preheat.compile(call, options={"cache": False}) if backend == "preheat" else torch.compile(call)


def count(name: str, backend: str) -> str:
    """Compiles and seconds of PAIRS calls of random batches and lengths, and the slowest of the last half."""
    (model, options), chance = model_of(name), random.Random(3)
    call, worst, slow, late = wrapped(model, backend), 0.0, 0, []
    began = time.perf_counter()
    with torch.no_grad():
        for k in range(PAIRS):
            ids = torch.randint(0, 1000, (chance.randint(1, 8), chance.randint(2, 256)), device="cuda")
            start = time.perf_counter()
            found = call(input_ids=ids, **options)[0]
            torch.cuda.synchronize()
            took = time.perf_counter() - start
            slow += took > 0.2
            late += [took] if k >= PAIRS // 2 else []
            if k % 10 == 0:
                worst = max(worst, float((found - model(input_ids=ids, **options)[0]).abs().max()))
    total = time.perf_counter() - began
    return (f"{name} {backend}: {_compiles(backend)}, {total:.1f} s, {slow} calls over 0.2 s, later calls "
            f"median {statistics.median(late) * 1e3:.2f} ms, most {max(late) * 1e3:.1f} ms, error {worst:.1e}")


def _compiles(backend: str) -> str:
    if backend == "preheat":
        counters = preheat.counters()
        told = ", ".join(f"{k} {counters[k]}" for k in ("captures", "compiles", "fallbacks", "breaks"))
        return f"{told}, sizes pinned by {sorted(_PINNED)}, {sorted(_FALLEN)}"
    from torch._dynamo.utils import counters  # loaded by torch.compile

    return f"graphs {counters['stats']['unique_graphs']}"


def train(backend: str, attention: str = "") -> str:
    """GPT-2 trained on LENGTHS lengths, each four times: captures, compiles, seconds, the loss. attention:
    "flash" or "cudnn" in bfloat16, else what torch chooses in float32."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_embd=256, n_layer=4, n_head=4, vocab_size=1000, n_positions=512, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0)
    model, chance = transformers.GPT2LMHeadModel(config).cuda(), random.Random(3)
    if attention:
        model = model.bfloat16()
    call, lengths = wrapped(model, backend) if backend != "eager" else model, []
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    lengths = [chance.randint(16, 400) for _ in range(LENGTHS)]
    marks, began, losses = [], time.perf_counter(), []
    for turn in range(4):
        for length in lengths:
            ids = torch.randint(0, 1000, (4, length), device="cuda")
            optimizer.zero_grad()
            with sdpa_kernel(getattr(SDPBackend, f"{attention.upper()}_ATTENTION")) if attention else nullcontext():
                loss = call(input_ids=ids, labels=ids, use_cache=False).loss
                loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        torch.cuda.synchronize()
        marks.append(time.perf_counter() - began)
    told = "" if backend == "eager" else _compiles(backend)
    return f"gpt2 training {backend} {attention}: {told}; seconds after each turn {[round(m, 1) for m in marks]}, last loss {float(losses[-1]):.5f}"


def main(what: str, *rest: str) -> None:
    bus.subscribe(_note, {"capture", "fallback"})
    if what == "speed":
        with torch.no_grad():
            for row in speed(*rest):
                print(row, flush=True)
    else:
        print((count if what == "count" else train)(*rest), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
