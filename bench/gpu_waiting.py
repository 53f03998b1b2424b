"""A prototype on a GPU: programs that wait for each other, so that a row which no program holds is read once.

    python -m bench.gpu_waiting              softmax of few very long rows, beside a copy and Preheat

Each program holds `CHUNK` elements of a row. It publishes their largest and their sum of exponentials as one word of 64 bits
(a sum is never 0, so a word of zeros is not there yet), reads those of all programs of its row, spinning until they are there, and
writes its part. One cooperative launch, so that all programs run at once; the words are zeroed before.

No part of the compiler yet: what the launch, the cache and machines without a GPU would need is in docs/performance.md
("Softmax of few very long rows").
"""

import ctypes
import statistics

import torch
import triton
import triton.language as tl

import preheat

SHAPES = ((64, 1 << 20), (256, 1 << 18), (1024, 1 << 17), (2048, 1 << 16), (16, 1 << 22))
CHUNK, WARPS = 8192, 4
_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _exp2(x):
    return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _joined(m, s, n, t):
    top = _larger(m, n)
    base = tl.where(top == float("-inf"), 0.0, top)
    return top, s * _exp2(m - base) + t * _exp2(n - base)


@triton.jit
def _publish(words, at, largest, total):
    low = largest.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    high = total.to(tl.int32, bitcast=True).to(tl.int64)
    tl.atomic_xchg(words + at, (high << 32) | low, sem="relaxed")


@triton.jit
def _wait(words, row, per, PARTS: tl.constexpr):
    part = tl.arange(0, PARTS)
    at = words + row * per + tl.minimum(part, per - 1)
    word = tl.inline_asm_elementwise(  # each thread spins by itself: without a loop of Triton's, loads go on ahead
        "{ .reg .pred p; again: ld.relaxed.gpu.global.b64 $0, [$1]; setp.eq.s64 p, $0, 0; @p bra again; }",
        "=l,l", [at], dtype=tl.int64, is_pure=False, pack=1)
    largest = tl.where(part < per, word.to(tl.int32).to(tl.float32, bitcast=True), float("-inf"))
    total = tl.where(part < per, (word >> 32).to(tl.int32).to(tl.float32, bitcast=True), 0.0)
    top, total = tl.reduce((largest, total), 0, _joined)
    return tl.where(top == float("-inf"), 0.0, top), total


@triton.jit(do_not_specialize=["rows", "per", "groups"])
def softmax_of_long_rows(
    source, out, words, rows, length, per, groups, CHUNK: tl.constexpr, PARTS: tl.constexpr, STAGES: tl.constexpr,
):
    program = tl.program_id(0)
    part, group = program % per, program // per
    column = part * CHUNK + tl.arange(0, CHUNK)
    for row in tl.range(group, rows, groups, num_stages=STAGES):
        begin = row.to(tl.int64) * length
        x = tl.load(source + begin + column).to(tl.float32) * _LOG2_E
        largest = tl.reduce(x, 0, _larger)
        e = _exp2(x - tl.where(largest == float("-inf"), 0.0, largest))
        _publish(words, row * per + part, largest, tl.sum(e, 0))
        top, total = _wait(words, row, per, PARTS)
        y = e * (_exp2(largest - top) * (1.0 / total))
        tl.store(out + begin + column, y.to(out.dtype.element_ty), eviction_policy="evict_first")


def waiting(x: torch.Tensor, out: torch.Tensor, words: torch.Tensor):
    """What launches the kernel for `x` [R, N] once; None if too few programs of a row run at once."""
    rows, length = x.shape
    per = length // CHUNK
    settings = dict(
        CHUNK=CHUNK, PARTS=triton.next_power_of_2(per), STAGES=3, num_warps=WARPS, launch_cooperative_grid=True)
    made = softmax_of_long_rows.warmup(x.dtype, x.dtype, torch.int64, rows, length, per, 4, grid=(1,), **settings)
    made._init_handles()
    count = ctypes.c_int()
    ctypes.CDLL("libcuda.so.1").cuOccupancyMaxActiveBlocksPerMultiprocessor(
        ctypes.byref(count), ctypes.c_void_p(made.function), WARPS * 32, ctypes.c_size_t(made.metadata.shared))
    resident = count.value * torch.cuda.get_device_properties(0).multi_processor_count
    groups = min(resident // per, rows)
    if not groups:
        return None

    def launch() -> None:
        words.zero_()
        softmax_of_long_rows[(groups * per,)](x, out, words, rows, length, per, groups, **settings)

    return launch


def median_us(call, rounds: int = 7, calls: int = 10) -> float:
    """Device time of a call, of `calls` in a CUDA graph, the median of `rounds` replays."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    seen = []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        seen.append(begin.elapsed_time(end) * 1000 / calls)
    return statistics.median(seen)


def main() -> None:
    """Prints the table."""
    print(f"{'softmax':28}{'copy us':>10}{'with waits us':>15}{'preheat us':>12}{'error':>8}")
    for dtype in (torch.bfloat16, torch.float32):
        compiled = preheat.compile(lambda x: torch.softmax(x, -1))
        for rows, length in SHAPES:
            x = torch.randn(rows, length, device="cuda").to(dtype)
            out = torch.full_like(x, float("nan"))
            words = torch.zeros(rows * (length // CHUNK), dtype=torch.int64, device="cuda")
            call = waiting(x, out, words)
            for _ in range(3):
                compiled(x)
            ours, copy = median_us(lambda: compiled(x)), median_us(lambda: out.copy_(x))
            with_waits = median_us(call) if call else float("nan")
            expected = torch.softmax(x[-1].double(), -1)
            error = ((out[-1].double() - expected).norm() / expected.norm()).item()
            name = f"{rows} x {length} {str(dtype)[6:]}"
            print(f"{name:28}{copy:10.1f}{with_waits:15.1f}{ours:12.1f}{error:8.0e}", flush=True)


if __name__ == "__main__":
    main()
