"""Kernels whose rows several programs share, in Triton's interpreter.

    python -m generate.shared_cases softmax

Programs run one after the other there, and none can wait: a kernel is run as often as it waits, and once more. What a
program is told at last is what it would have waited for. Raises at the first case that is not as `bridge.interpret` says.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace

from generate.interpreted import run_triton  # first: it chooses Triton's interpreter

from generate.triton_cases import ODD, TARGET, given
from schedule.graphs import Make, on_gpu, same
from schedule.loop_interpret import run_plan

from preheat.bridge.interpret import run
from preheat.generate.variants import sources_of
from preheat.ir.devices import device_of
from preheat.ir.graph import Graph
from preheat.schedule import cost, sharing
from preheat.schedule.schedule import schedule

# Rows are short here, and need be neither many nor gone from a cache.
cost.GPU_ROW_ELEMS, sharing.LEAST_TURNS = 64, 0
for name, each in (("LIGHT", 64), ("PLAIN", 64), ("SMALL", 32), ("BEHIND", 64), ("BEHIND_SMALL", 32), ("BEHIND_EXP", 64)):
    setattr(sharing, name, getattr(sharing, name)._replace(each=each))
sharing.device_of = lambda arch: device_of(arch)._replace(cache_bytes=0)
SIZES = ((5, 256), (5, 192), (3, 184), (2, 3, 128))


def softmax() -> Iterator[Graph]:
    for sizes in SIZES:
        axis = len(sizes) - 1
        m = Make()
        yield m.graph(m.softmax(m.input(*sizes), axis))
        m = Make()
        yield m.graph(m.cast(m.softmax(m.cast(m.input(*sizes, dtype="float16"), "float32"), axis), "float16"))
        m = Make()  # the exponentials are a result, too
        x = m.input(*sizes)
        e = m.op("exp", m.op("sub", x, m.reduce("max", x, axis)))
        yield m.graph(e, m.op("div", e, m.reduce("sum", e, axis)))


def log_softmax() -> Iterator[Graph]:
    for sizes in SIZES:
        for dtype in ("float32", "float16"):
            m = Make()
            axis, x = len(sizes) - 1, m.input(*sizes, dtype=dtype)
            x = x if dtype == "float32" else m.cast(x, "float32")
            below = m.op("sub", x, m.reduce("max", x, axis))
            made = m.op("sub", below, m.op("log", m.reduce("sum", m.op("exp", below), axis)))
            yield m.graph(made if dtype == "float32" else m.cast(made, dtype))


def norms() -> Iterator[Graph]:
    for rows, length in ((5, 256), (3, 192), (3, 184)):
        m = Make()
        yield m.graph(m.layer_norm(m.input(rows, length), m.input(length), m.input(length)))
        m = Make()
        x = m.input(rows, length)
        scale = m.op("rsqrt", m.op("add", m.mean(m.op("mul", x, x), 1), (1e-5,)))
        yield m.graph(m.op("mul", m.op("mul", x, scale), m.input(length)))
        m = Make()
        x = m.op("add", m.input(rows, length), m.input(rows, length))
        yield m.graph(x, m.softmax(x, 1))


def behind() -> Iterator[Graph]:
    """Rows that are stored when the next one has been told of, 16-bit ones held in pairs."""
    for sizes in ((7, 256), (3, 192), (4, 184), (2, 3, 128), (2, 256)):
        length = sizes[-1]
        for dtype in ("float32", "float16"):
            m = Make()
            x, weight, bias = (wide(m, *each, dtype=dtype) for each in (sizes, (length,), (length,)))
            yield m.graph(m.cast(m.layer_norm(x, weight, bias), dtype))
            m = Make()
            x, weight = (wide(m, *each, dtype=dtype) for each in (sizes, (length,)))
            yield m.graph(m.cast(rms_norm(m, x, len(sizes) - 1, weight), dtype))
    m = Make()  # two rows held, their sum a result, too
    x = m.op("add", wide(m, 5, 192, dtype="float16"), wide(m, 5, 192, dtype="float16"))
    yield m.graph(m.cast(x, "float16"), m.cast(rms_norm(m, x, 1), "float16"))
    m = Make()  # what is read as it is, too, is no pair
    x = m.input(5, 192, dtype="float16")
    y = rms_norm(m, m.cast(x, "float32"), 1)
    yield m.graph(m.op("add", m.cast(y, "float16"), x))
    m = Make()  # a number of each row, before the walk and after
    x, scale = wide(m, 5, 256, dtype="float16"), m.input(5, 1)
    x = m.op("mul", x, m.op("abs", scale))
    yield m.graph(m.op("mul", m.op("sub", x, m.reduce("max", x, 1)), m.op("abs", scale)))


def wide(m: Make, *sizes: int, dtype: str) -> int:
    return m.cast(m.input(*sizes, dtype=dtype), "float32") if dtype != "float32" else m.input(*sizes)


def rms_norm(m: Make, x: int, axis: int, weight: int | None = None) -> int:
    scale = m.op("rsqrt", m.op("add", m.mean(m.op("mul", x, x), axis), (1e-5,)))
    made = m.op("mul", x, scale)
    return made if weight is None else m.op("mul", made, weight)


def reductions() -> Iterator[Graph]:
    for how in ("sum", "max", "min", "prod"):
        for dtype in ("float32", "int32") if how in ("max", "min") else ("float32",):
            m = Make()
            x = m.input(5, 192, dtype=dtype)
            yield m.graph(m.op("sub", x, m.reduce(how, x, 1)))
    m = Make()  # several in one walk
    x = m.input(5, 256)
    low, high, total = (m.reduce(how, x, 1) for how in ("min", "max", "sum"))
    yield m.graph(m.op("mul", m.op("div", m.op("sub", x, low), m.op("sub", high, low)), total))
    for how in ("any", "all"):
        m = Make()
        x = m.input(5, 256)
        is_it = m.reduce(how, m.op("gt", x, (-1.5,)), 1)
        yield m.graph(m.add("where", [m.expand(is_it, 5, 256), x, m.op("neg", x)], m.type(x)))


GROUPS = {group.__name__: group for group in (softmax, log_softmax, norms, behind, reductions)}


def check(graph: Graph, ours: list, theirs: list, is_behind: bool) -> None:
    plan = schedule(on_gpu(graph), TARGET)
    (shared,) = [kernel for kernel in plan.kernels if kernel.shared]
    assert shared.is_behind or not is_behind
    expected = run(graph, theirs)
    for found in (run_plan(plan, ours), run_triton(plan, ours, TARGET)):
        for a, b in zip(found, expected, strict=True):
            same(a, b)
    # what runs where there is no room for all programs at once
    alone = replace(plan, kernels=tuple(replace(kernel, shared=0, is_behind=False) for kernel in plan.kernels))
    assert [source.tile.parts > 0 for source in sources_of(shared, TARGET)] == [True, False]
    for a, b in zip(run_triton(alone, ours, TARGET), expected, strict=True):
        same(a, b)


def main(group: str) -> None:
    count = 0
    for graph in GROUPS[group]():
        check(graph, given(graph), given(graph), group == "behind")
        count += 1
        for odd in (*ODD, 0.0) if group != "reductions" else ():
            ours, theirs = given(graph), given(graph)
            for x in (ours[0], theirs[0]):
                x[0], x[-1, ..., 2] = odd, odd
            check(graph, ours, theirs, group == "behind")
    print(f"{count} graphs")


if __name__ == "__main__":
    main(sys.argv[1])
