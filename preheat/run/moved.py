"""What moved: which numbers of a call are other ones than those that a node was captured for.

    self.n was 3, is 4          ->  "self.n": a runtime number at the next capture
    len(log) was 0, is 1        ->  "len(log)"
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import Any

from preheat.base.names import raw_attribute
from preheat.bridge.tensors import PLAIN_TENSORS, Tensor, is_dense, is_plain
from preheat.ir.dims import source_of
from preheat.ir.scalar import symbols
from preheat.ir.text_trace import axis_path, equal_sizes, keys_path, known_tensor, source_path, turns_path
from preheat.ir.trace import Guard, Trace
from preheat.run import resolve as steps
from preheat.run.check import Checker, references, same
from preheat.run.resolve import Call, NotThere, resolve_source


def moved_numbers(
    checker: Checker, args: Sequence[Any], kwargs: Mapping[str, Any],
) -> frozenset[str]:
    """The paths of ints and floats that a `value` guard expects and that are others in a call with
    these arguments, of the same type, attributes of classes among them; of lengths, and of texts that are arguments."""
    trace = checker.trace
    call = Call(checker.target, args, kwargs, checker.objects)
    found: list[Any] = [None] * len(trace.sources)
    there: set[int] = {-1}  # what is found through something that is not there is not there
    for number, source in enumerate(trace.sources):
        if there.issuperset((source.parent, *references(source.key))):
            with contextlib.suppress(NotThere):
                found[number] = resolve_source(source, call, found)
                there.add(number)
    values = {
        source_path(trace, guard.source) for guard in checker.guards
        if guard.kind == "value" and _may_move(trace, guard)
        and _is_other(found[guard.source], guard.expected)
    }
    values |= {
        f"{source_path(trace, guard.source)}.{name}" for guard in checker.guards if guard.kind == "class"
        for name, expected in (guard.expected,) if type(expected) in (int, float)
        and isinstance(found[guard.source], type)
        and _is_other(raw_attribute(found[guard.source], name, None), expected)
    }
    lengths = {
        f"len({source_path(trace, guard.source)})" for guard in checker.guards
        if guard.kind == "len" and isinstance(found[guard.source], Sized)
        and steps.length(found[guard.source]) != guard.expected
    }
    lengths |= {
        keys_path(source_path(trace, guard.source)) for guard in checker.guards
        if guard.kind in ("keys", "contains") and isinstance(found[guard.source], dict)
        and checker.judge(guard, found) is not None}
    return frozenset(
        values | lengths | set(_tested_lengths(checker, found)) | set(_moved_axes(checker, found)))


def _is_other(now: Any, expected: int | float) -> bool:
    return type(now) is type(expected) and not same(now, expected)


def _tested_lengths(checker: Checker, found: Sequence[Any]) -> Iterator[str]:
    """The lengths in tests that go the other way, and what gives a number that was looked at."""
    trace = checker.trace
    for guard in checker.guards:
        source = trace.sources[guard.source] if guard.source >= 0 else None
        if guard.kind != "is" or source.kind != "number" or found[guard.source] is guard.expected:
            continue
        for name in symbols(source.key):
            kind = trace.sources[source_of(name)].kind
            path = source_path(trace, source_of(name))
            if kind not in _AXES and kind != "len":
                yield turns_path(path)
            if kind == "len" or source.key.op == "eq" and kind not in _AXES:
                yield path


def _moved_axes(checker: Checker, found: Sequence[Any]) -> Iterator[str]:
    """The sizes of tensors that are others than their guards say, and the strides that do not follow from sizes. A
    tensor that the variant did not have may have such a size from that very call (a cache is as long as the prompt
    was): what the sizes were is told, too."""
    known: list[str] = []
    before: set[int] = set()
    for guard in checker.guards:
        value = found[guard.source] if guard.source >= 0 else None
        if guard.kind != "tensor" or type(value) not in PLAIN_TENSORS or not is_plain(value):
            continue
        expected = guard.expected.type
        if value.dim() != expected.rank:
            continue
        path = source_path(checker.trace, guard.source)
        if type(value) is Tensor:
            known.append(known_tensor(path))
        axes = [axis for axis, n in enumerate(expected.sizes) if value.shape[axis] != n]  # symbols differ as well
        yield from (axis_path(path, "size", axis) for axis in axes)
        before.update(n for axis in axes if type(n := expected.sizes[axis]) is int and n > 1)
        if not axes or not is_dense(value):
            yield from (
                axis_path(path, "stride", axis) for axis, n in enumerate(expected.strides)
                if value.stride(axis) != n and (not axes or value.shape[axis] > 1))
    if before:
        yield from (*map(equal_sizes, before), *known)


_AXES = frozenset(("size", "stride"))


def _may_move(trace: Trace, guard: Guard) -> bool:
    kind = type(guard.expected)
    is_argument = trace.sources[guard.source].parent < 0
    return kind in (int, float) or kind is str and is_argument
