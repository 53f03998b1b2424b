"""Graphs: a straight line of ops over numbered values, at level `aten` or `core`.

    graph core (%0: f32[8, 128] "x", %1: f32[128] "self.weight"):
        %2: f32[8, 128] = mul(%0, %1)
        return %2

A value is a number; `Op.results` names the values an op defines. At level `aten` an op is an ATen
overload with its arguments as recorded, composites already decomposed by torch; ops may write to
their arguments and results may alias them, and both facts stand in the op. At level `core` every
op is a row of `ops.CORE` (or `library`, an ATen overload kept whole), nothing is written, and
`Graph.writes` says what is stored back into the inputs at the end.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias, Union

from preheat.base.dataclass import dataclass, field
from preheat.base.identity import identity
from preheat.ir.scalar import Dim, Scalar
from preheat.ir.types import TensorType, Type


@dataclass(frozen=True, slots=True)
class Ref:
    """The value `id` as an argument."""

    id: int

    def __str__(self) -> str:
        return f"%{self.id}"


@dataclass(frozen=True, slots=True)
class Token:
    """A torch constant by name: kind "dtype", "device", "layout" or "memory_format"."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


@dataclass(frozen=True, slots=True)
class Item:
    """The one element of the 0-d value `id`, as a Python number: what torch takes as a number."""

    id: int

    def __str__(self) -> str:
        return f"item %{self.id}"


CARRY = "preheat.carry"  # of two values: the elements of the first, the history of the second

Arg: TypeAlias = Union[Ref, Item, Token, Scalar, int, float, bool, complex, str, None, tuple["Arg", ...]]


@dataclass(frozen=True, slots=True)
class Op:
    """One operation. `name`: "aten.add.Tensor" (namespace.op.overload) at level aten, "add" at core.

    args, attrs   level aten: positional and keyword arguments as torch got them; a number that
                  is only known at run time is a `Ref` to an input of a `ScalarType`.
                  level core: args are only `Ref`s, attrs are the constants of `ops.CORE[name]`.
    results       the values defined, one for each tensor or number returned (-1: result unused
                  and not representable); a list result is flattened.
    types         one a result.
    writes        values whose memory the op changes (level aten).
    aliases       one a result: the value whose storage it shares, or -1 for a fresh storage. A
                  result that *is* its argument (in-place ops) has the same id as the argument.
    is_grad_enabled   grad mode when the op ran: an autograd boundary follows from it.
    regions       the graphs of higher-order ops (cond, autograd.Function halves).
    region        the number of the checkpoint that it is inside of, 0 for none: what such ops give to
                  each other is not kept for a backward, but computed again. Of a backward at level core:
                  the zone of one; ops of two zones share no kernel.
    """

    name: str
    args: tuple[Arg, ...]
    results: tuple[int, ...]
    types: tuple[Type, ...]
    attrs: tuple[tuple[str, Arg], ...] = ()
    writes: tuple[int, ...] = ()
    aliases: tuple[int, ...] = ()
    is_grad_enabled: bool = False
    regions: tuple["Graph", ...] = ()
    region: int = 0

    def attr(self, name: str, default: Arg = None) -> Arg:
        for key, value in self.attrs:
            if key == name:
                return value
        return default

    @property
    def result(self) -> int:
        (one,) = self.results
        return one

    @property
    def type(self) -> Type:
        (one,) = self.types
        return one

    def refs(self) -> list[int]:
        """The values read, in order of appearance, keywords last."""
        found: list[int] = []
        for arg in self.args:  # asked for all the time: most arguments are values
            if arg.__class__ is Ref:
                found.append(arg.id)
            elif arg.__class__ in _REFERRING:
                found += refs_of(arg)
        for _, arg in self.attrs:
            if arg.__class__ in _REFERRING:
                found += refs_of(arg)
        return found


def refs_of(arg: Arg) -> list[int]:
    """The values named in `arg`, however deep."""
    if arg.__class__ is Ref or arg.__class__ is Item:
        return [arg.id]
    if arg.__class__ is not tuple:
        return []
    found: list[int] = []
    for part in arg:
        if part.__class__ in _REFERRING:
            found += refs_of(part)
    return found


_REFERRING = frozenset((Ref, Item, tuple))  # the classes of arguments that may name values


def map_refs(arg: Arg, change) -> Arg:
    """`arg` with each `Ref` replaced by `change(ref.id)` (an Arg); an `Item` stays one."""
    if arg.__class__ is Ref:
        return change(arg.id)
    if arg.__class__ is Item:
        return Item(change(arg.id).id)
    if isinstance(arg, tuple):
        return tuple([map_refs(part, change) for part in arg])
    return arg


@dataclass(frozen=True, slots=True)
class Input:
    """An input value: its type, a name for people ("self.layers[0].weight"), its alias set.

    Inputs with equal `alias_set` >= 0 may overlap in memory; -1 overlaps no other input.
    """

    id: int
    type: Type
    name: str = ""
    alias_set: int = -1


@dataclass(frozen=True, slots=True)
class OutputAlias:
    """Where an output lives: kind "fresh" (memory of its own), "input" or "output".

    "input" is the memory of the `base`-th input, "output" that of the `base`-th output (which is
    fresh or detached); its first element is `offset` elements after the base's first one, sizes and
    strides are those of the output's type.

    is_detached   what autograd comes to know of the output it does not know of the base, as after
                  `detach`; else it is a view, and both have one history
    """

    kind: str = "fresh"
    base: int = -1
    offset: Dim = 0
    is_detached: bool = False


@dataclass(frozen=True, slots=True)
class Store:
    """A store of an in-place write: `value` goes to the memory of input `target`.

    After the stores of `state` the input's memory holds that value: later readers of `state` find it
    there. The first element goes `offset` elements after the input's first one, the axes of the
    value's type are `strides` apart. A value that reads the old memory elsewhere is made first.
    """

    target: int
    state: int
    value: int
    offset: Dim
    strides: tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class Graph:
    """Inputs, ops in program order, outputs; at level core also what is written back.

    writes           (input id, value id): after all ops, the memory of the input takes the value.
    output_aliases   one an output, or empty when every output is fresh. Of an aliased output only the
                     type of its value counts: what it holds is what the memory holds at the end.
                     Outputs past those of the recorded graph may stand at the end: the memory that
                     others are views of.
    in_place         written inputs whose memory may take each new state when it is made instead of
                     after all ops: as the ops stand, nothing after the op that makes a state reads
                     the state before it, and nothing after the last can raise. Who delays a read
                     must keep it before the stores of the next state.
    stores           for the inputs in `in_place`, what is stored and when, in order: all of a state
                     that is computed as a whole, the parts of one that is `place`d on the state before.
    symbols          (name, input id): the numbers that sizes, strides and arguments are made of
    hints            calls that the graph was seen to be right for, the recorded one first: in each,
                     what the symbols were
    grads            values that required grad when they were first read (level aten).
    grad_outputs     places of the outputs that require grad at the end (level aten).
    stored           (value, memory): where a write of the program has put a value of a functional graph;
                     `memory` is what is in the memory since then
    """

    level: str
    inputs: tuple[Input, ...]
    ops: tuple[Op, ...]
    outputs: tuple[int, ...]
    writes: tuple[tuple[int, int], ...] = ()
    output_aliases: tuple[OutputAlias, ...] = ()
    in_place: tuple[int, ...] = ()
    stores: tuple[Store, ...] = ()
    symbols: tuple[tuple[str, int], ...] = ()
    hints: tuple[tuple[int, ...], ...] = ()
    grads: tuple[int, ...] = ()
    grad_outputs: tuple[int, ...] = ()
    stored: tuple[tuple[int, int], ...] = ()

    def types(self) -> dict[int, Type]:
        """The type of every value."""
        found: dict[int, Type] = {i.id: i.type for i in self.inputs}
        for op in self.ops:
            for result, type in zip(op.results, op.types):
                found.setdefault(result, type)
        return found

    def uses(self) -> dict[int, int]:
        """How often each value is read by ops, outputs and writes."""
        count: dict[int, int] = {}
        for op in self.ops:
            for ref in op.refs():
                count[ref] = count.get(ref, 0) + 1
        for value in (*self.outputs, *(v for _, v in self.writes)):
            count[value] = count.get(value, 0) + 1
        return count

    @property
    def carries_gradient(self) -> bool:
        """Whether a gradient may leave: by a result that requires grad, or a write that autograd sees. (Of
        a view that was made under `no_grad` torch may say that it does, but it has no history.)"""
        grads, roots = set(self.grads), self.roots() if self.grads else {}
        inputs = {given.id for given in self.inputs}
        of_inputs = {value for value, root in roots.items() if root in inputs}
        quiet = {
            result for op in self.ops if not op.is_grad_enabled
            for result, alias in zip(op.results, op.aliases) if result != alias and result in of_inputs}
        return bool(grads) and (any(self.outputs[place] not in quiet for place in self.grad_outputs) or any(
            op.is_grad_enabled and op.writes and not grads.isdisjoint(op.refs()) for op in self.ops))

    def roots(self) -> dict[int, int]:
        """The first value of the storage of each value that lies in another's (level aten)."""
        found: dict[int, int] = {}
        for op in self.ops:
            for result, alias in zip(op.results, op.aliases):
                if alias not in (-1, result):
                    found[result] = found.get(alias, alias)
        return found

    def next_id(self) -> int:
        """A number above every value's."""
        ids = [i.id for i in self.inputs] + [r for op in self.ops for r in op.results]
        return max(ids, default=-1) + 1


@dataclass
class Builder:
    """Appends ops to a graph under construction; `finish` freezes it.

        b = Builder("core"); x = b.input(tensor("float32", (8,)), "x")
        b.finish([b.add("neg", [x], tensor("float32", (8,)))])
    """

    level: str
    inputs: list[Input] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    next_id: int = 0
    type_of: dict[int, Type] = field(default_factory=dict)

    def fresh(self) -> int:
        self.next_id += 1
        return self.next_id - 1

    def input(self, type: Type, name: str = "", alias_set: int = -1) -> int:
        value = self.fresh()
        self.inputs.append(Input(value, type, name, alias_set))
        self.type_of[value] = type
        return value

    def add(self, name: str, refs, type: Type, **attrs: Arg) -> int:
        """Appends a core op with one result; returns the result's value."""
        value = self.fresh()
        self.append(Op(name, tuple(Ref(r) for r in refs), (value,), (type,), tuple(sorted(attrs.items()))))
        return value

    def append(self, op: Op) -> None:
        self.ops.append(op)
        for result, type in zip(op.results, op.types):
            self.type_of.setdefault(result, type)
            self.next_id = max(self.next_id, result + 1)

    def finish(self, outputs, writes=()) -> Graph:
        return Graph(self.level, tuple(self.inputs), tuple(self.ops), tuple(outputs), tuple(writes))


def copied_into(given: Input, value: int) -> Op:
    """The op of level aten that copies `value` into an input."""
    return Op(
        "aten.copy_.default", (Ref(given.id), Ref(value)), (given.id,), (given.type,),
        writes=(given.id,), aliases=(given.id,))


def with_ops(graph: Graph, ops) -> Graph:
    """`graph` with other ops."""
    return replace(graph, ops=tuple(ops))


def with_replaced(
    graph: Graph, is_chosen: Callable[[Op], bool], append: Callable[[Builder, Op], None],
) -> Graph:
    """`graph` (level core) with what `append` appends in place of each op that `is_chosen`: it gives the
    op's own values. The very same graph if none is."""
    chosen = {identity(op) for op in graph.ops if is_chosen(op)}
    if not chosen:
        return graph
    builder = Builder("core", next_id=graph.next_id(), type_of=dict(graph.types()))
    for op in graph.ops:
        if identity(op) in chosen:
            append(builder, op)
        else:
            builder.ops.append(op)
    return with_ops(graph, builder.ops)


def tensor_type(type: Type) -> TensorType:
    """`type`, known to be a tensor's. Raises TypeError if it is not."""
    if not isinstance(type, TensorType):
        raise TypeError(f"expected a tensor type, got {type}")
    return type


def device_of(graph: Graph) -> str:
    """The GPU that tensors of `graph` are on (the first of several), or "cpu"."""
    types = (*(i.type for i in graph.inputs), *(t for op in graph.ops for t in op.types))
    devices = {t.device for t in types if isinstance(t, TensorType)} - {"cpu"}
    return min(devices, default="cpu")
