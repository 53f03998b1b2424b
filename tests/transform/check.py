"""The check of every transform test: eager against the lowered graph, by the interpreter.

    check(fn, x, y)    records fn, lowers with the verifier on, runs both levels on fresh copies and
                       compares values, dtypes, strides, aliasing and what became of the inputs

Floats are judged against float64: no worse than eager's own error (twice, thrice in 16 bits) or
the rounding of the dtype; everything else is equal.
"""

from collections.abc import Callable

import torch
from torch.utils._pytree import tree_leaves

from preheat.bridge import interpret
from preheat.ir.graph import Graph
from preheat.transform.pipeline import lower
from transform.record import record


def copies(tensors):
    """Fresh tensors with the same values and strides; two views of one storage stay so."""
    storages: dict[int, torch.Tensor] = {}
    made = []
    for t in tensors:
        key = t.untyped_storage()._cdata
        if key not in storages:
            flat = torch.empty(0, dtype=torch.uint8).set_(t.untyped_storage())
            storages[key] = flat.clone()
        storage = storages[key].untyped_storage()
        made.append(torch.empty(0, dtype=t.dtype).set_(storage, t.storage_offset(), t.shape, t.stride()))
    return made


def check(fn: Callable, *inputs: torch.Tensor, factor: float = 2.0, reference: Callable | None = None) -> Graph:
    """The lowered graph of `fn(*inputs)`, which equals eager. `reference`: fn for float64 operands."""
    given = copies(inputs)
    state = torch.get_rng_state()
    graph, feeds, outputs = record(fn, given)
    replayed(graph, inputs, feeds, outputs, given, state)
    core = lower(graph, is_checked=True)
    precise = exact(reference, inputs) if reference else _exact_of_floats(fn, inputs)
    fresh = [*copies(inputs), *feeds[len(inputs):]]
    torch.set_rng_state(state)
    found = interpret.run(core, fresh)
    for place, eager in enumerate(outputs):
        same(found[place], eager, precise[place] if precise else None, factor)
    for ours, eager in zip(fresh, given):
        same(ours, eager, None, factor)
    shared(found[: len(outputs)], fresh, outputs, given)
    return core


def replayed(graph, inputs, feeds, outputs, given, state) -> None:
    """The recorded graph, op by op through torch, is eager: the oracle is right at level aten."""
    fresh = [*copies(inputs), *copies(feeds[len(inputs):])]
    torch.set_rng_state(state)
    found = interpret.run(graph, fresh)
    for ours, eager in zip((*found, *fresh), (*outputs, *given)):
        assert ours.stride() == eager.stride()
        # Not by bits: products in the library depend on how their operands are aligned.
        torch.testing.assert_close(ours, eager, equal_nan=True)


def _exact_of_floats(fn: Callable, inputs):
    return exact(fn, inputs) if any(t.is_floating_point() for t in inputs) else None


def exact(fn: Callable, inputs):
    """fn's results in float64, or None where fn will not have it."""
    try:
        wide = [t.double() if t.is_floating_point() else t.clone() for t in copies(inputs)]
        state = torch.get_rng_state()
        with torch.no_grad():
            out = [t for t in tree_leaves(fn(*wide)) if isinstance(t, torch.Tensor)]
        torch.set_rng_state(state)
        return out
    except (RuntimeError, TypeError, IndexError):
        return None


def same(found: torch.Tensor, eager: torch.Tensor, precise: torch.Tensor | None, factor: float) -> None:
    assert found.dtype == eager.dtype and found.shape == eager.shape, (found.dtype, eager.dtype, found.shape)
    strides = [(a, b) for n, a, b in zip(eager.shape, found.stride(), eager.stride()) if n > 1]
    assert eager.numel() == 0 or all(a == b for a, b in strides), (found.stride(), eager.stride())
    if not eager.is_floating_point():
        assert torch.equal(found, eager), (found, eager)
        return
    assert torch.equal(found.isnan(), eager.isnan()), (found, eager)
    infinite = eager.isinf() & found.isinf()
    assert torch.equal(found[infinite], eager[infinite])
    if precise is None or precise.dtype != torch.float64 or eager.dtype == torch.float64:
        torch.testing.assert_close(found, eager, equal_nan=True)
        return
    usable = precise.isfinite() & eager.isfinite()
    x, y, z = (t[usable].double() for t in (found, eager, precise))
    if not x.numel():
        return
    small = eager.dtype in (torch.float16, torch.bfloat16)
    eps = torch.finfo(eager.dtype).eps
    error, allowed = (x - z).abs(), (y - z).abs().max() * (3 if small else factor) + 4 * eps * z.abs() + 1e-3 * eps
    assert (error <= allowed).all(), ((error - allowed).max(), x, y, z)


def shared(found, fresh, outputs, given) -> None:
    """The same outputs share memory with the same inputs and outputs, at the same distance."""
    ours, theirs = [*found, *fresh[: len(given)]], [*outputs, *given]
    for i in range(len(outputs)):
        for j in range(len(theirs)):
            a, b = theirs[i], theirs[j]
            x, y = ours[i], ours[j]
            eager = a.numel() and b.numel() and a.untyped_storage()._cdata == b.untyped_storage()._cdata
            mine = x.numel() and y.numel() and x.untyped_storage()._cdata == y.untyped_storage()._cdata
            assert bool(eager) == bool(mine), (i, j)
            if eager:
                assert a.data_ptr() - b.data_ptr() == x.data_ptr() - y.data_ptr(), (i, j)


def library_ops(graph: Graph) -> list[str]:
    """The overloads that stayed library calls."""
    return [op.attr("op") for op in graph.ops if op.name == "library"]
