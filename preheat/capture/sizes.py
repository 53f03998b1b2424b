"""Sizes: the types of tensors with symbols for the sizes that change from call to call.

    x: f32[4, 6], axis 0 changes       f32[n3, 6]        n3 is source 3, the size of axis 0 of x
    y = x @ x.t()                      f32[n3, n3]       by the rule of aten.mm (`size_rules.py`)

A tensor from outside gets symbols for the axes that are told to change; strides are those of its
layout, as a guard says, or numbers. What an op gives is found by the rule of the op and compared
with what torch really gave: where there is no rule, or it does not say the same, the sizes that the
op was given are pinned. What rules and torch's own C++ find out about sizes on their way are guards
(`Numbers.test`), so a node holds for all sizes for which these hold.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from preheat.base.later import later
from preheat.bridge.ops import arguments
from preheat.bridge.symint import box, is_box, scalar_of
from preheat.capture.numbers import Numbers
from preheat.capture.sources import Sources
from preheat.capture.size_attention import NUMBERS
from preheat.capture.size_call import Call, NoRule, row_major
from preheat.capture.size_compute import pointwise
from preheat.capture.size_views import can_view, whole_size
from preheat.ir.dims import normal, substitute
from preheat.ir.graph import Graph, Input, Op
from preheat.ir.scalar import Dim, Number, Scalar, apply, symbol, symbols, type_of
from preheat.ir.text_trace import EVERY_SIZE, axis_path, equal_sizes, known_tensor, source_path
from preheat.ir.types import ScalarType, TensorType, Type, contiguous_strides

size_rules = later("preheat.capture.size_rules")


def shown_type(
    type: TensorType, axes: Sequence[int], size: Callable[[int], Number],
    stride: Callable[[int], Number], numbers: Numbers, moving_strides: Sequence[int] = (),
) -> TensorType:
    """`type`, of a tensor from outside, with symbols for the sizes of `axes`.

    size, stride   the symbol of an axis; a guard will say that strides are what the type says
    """
    sizes = tuple(size(axis) if axis in axes else n for axis, n in enumerate(type.sizes))
    if not any(isinstance(n, Scalar) for n in sizes) and not moving_strides:
        return type
    order = sorted(range(type.rank), key=lambda axis: (-type.strides[axis], axis))
    by_order = contiguous_strides(tuple(sizes[axis] for axis in order))
    dense = {axis: normal(step) for axis, step in zip(order, by_order)}
    if all(numbers.value(dense[axis]) == n for axis, n in enumerate(type.strides)):
        strides: tuple[Dim, ...] = tuple(dense[axis] for axis in range(type.rank))
    else:
        strides = type.strides
    strides = tuple(
        stride(axis) if axis in moving_strides else n for axis, n in enumerate(strides))
    for axis, step in enumerate(strides):
        if isinstance(step, Scalar) and axis not in moving_strides:
            numbers.require(apply("eq", stride(axis), step))
    return replace(type, sizes=sizes, strides=strides)


def moving_axes(
    sources: Sources, source: int, sizes: Sequence[int], is_new: bool, dynamic: frozenset[str],
) -> tuple[frozenset[int], frozenset[int]]:
    """The axes whose size, and those whose stride, are among the paths that change.

    is_new   a tensor that no module has as its parameter, which a variant may not have had
    """
    rank = len(sizes)
    if EVERY_SIZE in dynamic and root_kind(sources, source) in ("arg", "kwarg"):
        moving = frozenset(range(rank))
    else:
        moving = _named(sources, source, rank, "size", dynamic)
    if is_new and known_tensor(source_path(sources, source)) not in dynamic:
        moving |= {axis for axis, n in enumerate(sizes) if equal_sizes(n) in dynamic}
    return moving, _named(sources, source, rank, "stride", dynamic)


def _named(
    sources: Sources, source: int, rank: int, kind: str, dynamic: frozenset[str],
) -> frozenset[int]:
    path = source_path(sources, source)
    return frozenset(axis for axis in range(rank) if axis_path(path, kind, axis) in dynamic)


def root_kind(sources: Sources, source: int) -> str:
    while sources.table[source].parent >= 0:
        source = sources.table[source].parent
    return sources.table[source].kind


def is_symbolic(type: Type | None) -> bool:
    """Whether a size or stride of `type` is only known when the program runs."""
    return isinstance(type, TensorType) and any(
        isinstance(n, Scalar) for n in (*type.sizes, *type.strides))


def now(type: TensorType, numbers: Numbers) -> TensorType:
    """`type` with what the guards say by now."""
    return replace(
        type, sizes=tuple(map(numbers.normal, type.sizes)),
        strides=tuple(map(numbers.normal, type.strides)))


class SizeRules:
    """Finds the types of what ops give. `missed` counts the ops for which that failed, or pinned a size, by name."""

    def __init__(self, numbers: Numbers, missed: dict[str, int]) -> None:
        self.numbers, self.missed = numbers, missed

    def size_of(self, box: Any) -> Number:
        """The expression that a box holds. What follows from a float is a number of its own there."""
        scalar = self.numbers.normal(scalar_of(box))
        return scalar if _is_of_ints(scalar) else self.numbers.normal(self._of_ints(scalar))

    def _of_ints(self, scalar: Number) -> Number:
        """`scalar`, an integer, with a symbol for each integer in it that is made of floats."""
        if _is_of_ints(scalar):
            return scalar
        if all(type_of(arg) == "int" for arg in scalar.args):
            return apply(scalar.op, *map(self._of_ints, scalar.args))
        return self.numbers.symbol_for(scalar)

    def answer(self, question: Callable, type: TensorType, memory_format: str) -> bool | None:
        """What C is told that asks about the layout of a tensor; None: it looks itself."""
        return question(
            Call("", {}, {}, (), self.numbers), now(type, self.numbers), memory_format)

    def reshaped(self, type: TensorType, boxes: Sequence[Any]) -> tuple[bool, tuple] | None:
        """Whether a tensor of this type that is reshaped is a view, and its sizes with what -1 stands
        for; None where torch has to say."""
        sizes = [self.numbers.normal(scalar_of(b)) if is_box(b) else b for b in boxes]
        if not all(isinstance(n, Scalar) or n.__class__ is int for n in sizes):
            return None
        try:
            call = Call("", {}, {}, (), self.numbers)
            is_view = can_view(call, type, sizes)
            whole = whole_size(call, type, sizes)
        except NoRule:
            return None
        value = self.numbers.value
        return is_view, tuple(
            box(n, value(n), self.numbers) if isinstance(n, Scalar) else n for n in whole)

    def types(
        self, op: Op, type_of: Callable[[int], Type], real: Sequence[TensorType],
        is_pointwise: bool,
    ) -> list[TensorType]:
        """The types of the tensors that `op` gave, whose types now are `real`.

        type_of   the type of an operand, with symbols
        """
        numbers = self.numbers
        operands = {ref: type_of(ref) for ref in op.refs()}
        shown = {
            ref: now(type, numbers) if isinstance(type, TensorType) else type
            for ref, type in operands.items()
        }
        args = {name: _map_scalars(arg, numbers.normal) for name, arg in arguments(op).items()}
        if not any(map(is_symbolic, shown.values())) and not any(map(_has_scalar, args.values())):
            return list(real)
        name = op.name.split(".")[1]
        rules = size_rules.RULES
        rule = rules.get(op.name) or rules.get(name) or rules.get(name.removesuffix("_"))
        if rule is None and is_pointwise:
            rule = pointwise
        call = Call(op.name, args, shown, real, numbers)
        numbers.rule = op.name
        try:
            if rule is None:
                raise NoRule(f"no rule for {op.name}")
            found = [self._checked(made, type) for made, type in zip(rule(call), real, strict=True)]
        except (NoRule, ValueError):
            self._miss(op.name)
            self.pin_within(shown.values(), tuple(args.values()))
            return list(real)
        finally:
            numbers.rule = ""
        if call.pinned:
            self._miss(op.name)
        return found

    def _miss(self, name: str) -> None:
        self.missed[name] = self.missed.get(name, 0) + 1

    def seen(self, op: Op, type_of: Callable[[int], Type], results: Any) -> Any:
        """The `results` of `op` with boxes for the numbers among them that are sizes of its operands."""
        places = NUMBERS.get(op.name)
        if places is None or len(results) <= max(places):
            return results
        given, seen = arguments(op), list(results)
        for place, (name, axis) in places.items():
            size = self.numbers.normal(type_of(given[name].id).sizes[axis])
            if isinstance(size, Scalar) and self.numbers.value(size) == results[place]:
                seen[place] = box(size, results[place], self.numbers)
        return tuple(seen)

    def _checked(self, made: tuple | None, real: TensorType) -> TensorType:
        """The type of sizes and strides that a rule gave. Raises NoRule if it is not what torch gave.

        Strides of axes with one element say nothing.
        """
        if made is None:
            return real
        sizes, strides = made
        value = self.numbers.value
        sizes = tuple(map(self._some, sizes))
        strides = row_major(sizes) if strides is None else strides
        strides = tuple(map(self.numbers.normal, strides))
        if tuple(map(value, sizes)) != real.sizes:
            raise NoRule(f"{sizes} is not {real.sizes}")
        if 0 not in real.sizes:
            for size, step, found in zip(real.sizes, strides, real.strides, strict=True):
                if size != 1 and value(step) != found:
                    raise NoRule(f"strides {strides} are not {real.strides}")
        return replace(real, sizes=sizes, strides=strides)

    def _some(self, size: Dim) -> Dim:
        """A size in normal form; whether it has elements is guarded."""
        size = self.numbers.normal(size)
        if isinstance(size, Scalar):
            is_some = self.numbers.value(size) >= 1
            self.numbers.test(apply("ge", size, 1), is_some)
            if not is_some:  # a number that the program made a size of may be negative in another call
                self.numbers.test(apply("eq", size, 0), True)
                return 0
        return size

    def pin(self, type: Type) -> None:
        """A tensor of this type was used in a way that may hang on its sizes."""
        if isinstance(type, TensorType):
            for size in (*type.sizes, *type.strides):
                self.numbers.pin_scalar(size)

    def evaluated(self, type: TensorType, tensor: Any) -> TensorType:
        """`type` in this call; strides of axes with one element are those of `tensor`."""
        sizes = tuple(map(self.numbers.value, type.sizes))
        strides = tuple(
            own if size == 1 else self.numbers.value(step)
            for size, step, own in zip(sizes, type.strides, tensor.stride()))
        return replace(type, sizes=sizes, strides=strides)

    def pin_within(self, types: Iterable[Type], args: tuple) -> None:
        """An op on tensors of these types, with these arguments, hangs on their sizes."""
        for type in types:
            self.pin(type)
        for scalar in _scalars(args):
            self.numbers.pin_scalar(scalar)


# ---------------------------------------------------------------------------- a node's graph
def finished(
    graph: Graph, numbers: Numbers, sources: Sequence[int],
) -> tuple[Graph, tuple[int, ...]]:
    """`graph` as the guards leave it, with an input for each symbol in it; `sources`, one an input,
    with theirs."""
    by = numbers.same
    inputs = tuple(replace(i, type=_substituted(i.type, by)) for i in graph.inputs)
    ops = tuple(
        replace(
            op, args=_map_scalars(op.args, lambda s: substitute(s, by)),
            attrs=_map_scalars(op.attrs, lambda s: substitute(s, by)),
            types=tuple(_substituted(type, by) for type in op.types))
        for op in graph.ops
    )
    names = sorted({
        name for part in (*(i.type for i in inputs), *(t for op in ops for t in op.types))
        if isinstance(part, TensorType) for n in (*part.sizes, *part.strides) for name in symbols(n)
    } | {name for op in ops for s in _scalars((op.args, op.attrs)) for name in symbols(s)})
    first = graph.next_id()
    given = tuple(
        Input(first + k, ScalarType("int"), name) for k, name in enumerate(names))
    made = replace(
        graph, inputs=(*inputs, *given), ops=ops,
        symbols=tuple((name, i.id) for name, i in zip(names, given)),
        hints=(tuple(numbers.value(symbol(name)) for name in names),))
    return made, (*sources, *(int(name[1:]) for name in names))


def _substituted(type: Type, by: dict[str, Number]) -> Type:
    if not is_symbolic(type):
        return type
    return replace(
        type, sizes=tuple(substitute(n, by) for n in type.sizes),
        strides=tuple(substitute(n, by) for n in type.strides))


def _map_scalars(arg: Any, change: Callable[[Scalar], Number]) -> Any:
    if isinstance(arg, Scalar):
        return change(arg)
    if isinstance(arg, tuple):
        return tuple([_map_scalars(part, change) for part in arg])
    return arg


def _scalars(arg: Any) -> Iterator[Scalar]:
    if isinstance(arg, Scalar):
        yield arg
    elif isinstance(arg, tuple):
        for part in arg:
            yield from _scalars(part)


def _is_of_ints(value: Number) -> bool:
    if not isinstance(value, Scalar):
        return True
    return value.type == "int" if value.op == "sym" else all(map(_is_of_ints, value.args))


def _has_scalar(arg: Any) -> bool:
    return any(True for _ in _scalars(arg))
