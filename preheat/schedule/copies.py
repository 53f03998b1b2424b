"""Copies: the plan of a graph, made from that of the same graph with few of its parts that are alike.

    kernel mul_0 (b0, b1) over 8             kernel mul_0 (b0, b1) over 8
    as b2, b3 with 16                  ->    kernel mul_0 (b2, b3) over 16

Each call that writes to the inputs of a model is followed by the same on those of its copies. Requires parts that hang on
nothing of each other, but on single numbers of which each may read the same (`transform/alike.py`); so their calls may
stand in any order. Guarantees the plan of the whole graph, or None: where a call is of two parts or reads memory of the
plan's own in which something of the model may be, where what reads an input would come after the copy that
writes it, and where loops over other sizes would be others.
"""

from collections.abc import Iterator
from dataclasses import replace

from preheat.ir.alike import Alike, Copies
from preheat.ir.graph import Ref, map_refs
from preheat.ir.loop import ANY, Index, Kernel
from preheat.ir.ops import ELEMENTWISE
from preheat.ir.plan import Buffer, Call, KernelCall, LibraryCall, Plan, ProductCall
from preheat.ir.types import TensorType

_MEMORY = ("load", "store")
_FLAT = frozenset((*ELEMENTWISE, *_MEMORY, "const", "cast"))


def with_copies(plan: Plan, found: Alike) -> Plan | None:
    """The plan of `found.graph`, of which `plan` has what is in `found.few`."""
    models = _models(plan, found)
    if models is None:
        return None
    inputs = _inputs(plan, found)
    own = plan.buffers[len(plan.inputs):]
    number = [*found.places, *range(len(inputs), len(inputs) + len(own))]
    kernels = list(plan.kernels)
    calls: list[Call] = []
    for call, model in zip(plan.calls, models):
        calls.append(_renumbered(call, number))
        if model < 0:
            continue
        copies = found.copies[model]
        is_single = all(plan.buffers[buffer].type.elems == 1 for buffer in call.buffers)
        if not is_single and any(elems not in (0, call.extent) for elems in copies.elems):
            made = _for_any(kernels[call.kernel])
            if made is None:
                return None
            kernels[call.kernel] = made
        calls += _copied(call, copies, kernels[call.kernel], inputs, number, is_single)
    buffers = [Buffer("input", k, type) for k, type in enumerate(inputs)]
    buffers += [replace(b, base=number[b.base]) if b.base >= 0 else b for b in own]
    outputs = tuple([
        replace(o, buffer=number[o.buffer] if o.buffer >= 0 else -1,
                base=found.places[o.base] if o.alias == "input" else o.base)
        for o in plan.outputs])
    return replace(
        plan, inputs=inputs, buffers=tuple(buffers), kernels=tuple(kernels), calls=tuple(calls),
        outputs=outputs)


def _models(plan: Plan, found: Alike) -> list[int] | None:
    """Of each call the model that it is of, -1 for none; None where not all can be repeated."""
    model_of = {
        place: k for k, copies in enumerate(found.copies) for place in copies.model if place in found.parts}
    small = {place for place in model_of if plan.inputs[place].elems == 1}
    there = {place: k for k, place in enumerate(found.places)}
    hangs: dict[int, set[int]] = {}  # on which of `small` a buffer of the plan's own hangs
    written: set[int] = set()  # inputs, by copies so far
    models: list[int] = []
    for call in plan.calls:
        reads, writes = _reads(call, plan), _writes(call, plan)
        if not written.isdisjoint(reads):
            return None
        hang = set().union(*(hangs.get(_root(plan, b), {b} & small) for b in reads))
        for buffer in writes:
            hangs.setdefault(_root(plan, buffer), set()).update(hang)
        wanted = {model_of[b] for b in writes if b in model_of}
        if not wanted:
            touched = reads | writes
            owners = {found.parts[b] for b in touched if b in found.parts}
            if len(owners) == 1 and not model_of.keys().isdisjoint(touched) and _may_raise(call, plan):
                return None  # so may those of its copies
            models.append(-1)
            continue
        model = wanted.pop()
        copies = found.copies[model]
        others = reads.union(writes).difference(copies.model)
        if wanted or not isinstance(call, KernelCall) or not writes.issubset(copies.model):
            return None
        if others and (not any(copies.elems) or not all(
                b >= len(plan.inputs) and plan.buffers[b].type.elems == 1 and not hangs.get(_root(plan, b))
                for b in others)):
            return None
        models.append(model)
        places = [copies.model.index(b) for b in writes]
        written.update(there[other[k]] for other in copies.others for k in places if other[k] in there)
    return models


def _may_raise(call: Call, plan: Plan) -> bool:
    if not isinstance(call, KernelCall):
        return True
    return any(op.op == "check" for stage in plan.kernels[call.kernel].stages for op in stage.body)


def _root(plan: Plan, buffer: int) -> int:
    while plan.buffers[buffer].base >= 0:
        buffer = plan.buffers[buffer].base
    return buffer


def _reads(call: Call, plan: Plan) -> set[int]:
    """Buffers that a call may read."""
    if isinstance(call, KernelCall):
        params = plan.kernels[call.kernel].params
        return {b for b, param in zip(call.buffers, params) if param.role != "out"}
    if isinstance(call, ProductCall):
        return {call.a, call.b, call.out}
    return {*_named(call.args), *_named([arg for _, arg in call.attrs])}


def _writes(call: Call, plan: Plan) -> set[int]:
    """Buffers that a call may write."""
    if isinstance(call, KernelCall):
        params = plan.kernels[call.kernel].params
        return {b for b, param in zip(call.buffers, params) if param.role != "in"}
    if isinstance(call, ProductCall):
        return {call.out}
    written = {b for b in call.results if b >= 0}
    return written if _is_functional(call.op) else written | _reads(call, plan)


def _is_functional(op: str) -> bool:
    """Whether the overload `op` surely writes to none of its arguments."""
    space, name, variant = op.split(".")
    return space == "aten" and not name.endswith("_") and "out" not in variant and "batch_norm" not in name


def _named(args: object) -> Iterator[int]:
    if isinstance(args, Ref):
        yield args.id
    elif isinstance(args, (tuple, list)):
        for arg in args:
            yield from _named(arg)


def _renumbered(call: Call, number: list[int]) -> Call:
    """`call` with other numbers of buffers."""
    if isinstance(call, KernelCall):
        return KernelCall(
            call.kernel, tuple([number[b] for b in call.buffers]), call.extent, call.bytes, call.sizes)
    if isinstance(call, ProductCall):
        return ProductCall(number[call.a], number[call.b], number[call.out], call.beta)

    def renamed(arg):
        return map_refs(arg, lambda buffer: Ref(number[buffer]))

    return LibraryCall(
        call.op, tuple(map(renamed, call.args)),
        tuple([(name, renamed(arg)) for name, arg in call.attrs]),
        tuple([number[b] if b >= 0 else -1 for b in call.results]))


def _copied(
    call: KernelCall, copies: Copies, kernel: Kernel, inputs: tuple[TensorType, ...], number: list[int],
    is_single: bool,
) -> Iterator[KernelCall]:
    """The same call for each of the `copies`; is_single: of numbers alone."""
    place = {buffer: k for k, buffer in enumerate(copies.model)}
    at = [(place.get(buffer, -1), number[buffer]) for buffer in call.buffers]
    weights = [2 if param.role == "inout" else 1 for param in kernel.params]
    for other, elems in zip(copies.others, copies.elems):
        buffers = tuple([other[k] if k >= 0 else shared for k, shared in at])
        extent, moved = call.extent, call.bytes
        if not is_single and elems not in (0, extent):
            extent, moved = elems, sum([
                inputs[buffer].elems * inputs[buffer].itemsize * weight if k >= 0 else 0
                for buffer, (k, _), weight in zip(buffers, at, weights)])
        yield KernelCall(call.kernel, buffers, extent, moved)


def _for_any(kernel: Kernel) -> Kernel | None:
    """`kernel` for any number of elements, if it is one loop over all of them; else None."""
    is_flat = kernel.parallel == len(kernel.axes) == len(kernel.stages) == 1 and kernel.lane is not None
    if not is_flat or kernel.stages[0].axes or kernel.shared:
        return None
    axis = kernel.axes[0]
    if axis.extent == ANY:
        return kernel
    anywhere = (Index(0, ()), Index(0, ((axis.name, 1),)))
    for op in kernel.stages[0].body:
        if op.op not in _FLAT or op.mask is not None or op.op in _MEMORY and op.index not in anywhere:
            return None
    return replace(kernel, axes=(replace(axis, extent=ANY),))


def _inputs(plan: Plan, found: Alike) -> tuple[TensorType, ...]:
    """The types of all inputs; numbers as the plan has those of the models."""
    types: list = [given.type for given in found.graph.inputs]
    for place, type in zip(found.places, plan.inputs):
        types[place] = type
    for copies in found.copies:
        for other in copies.others:
            for place, model in zip(other, copies.model):
                if not isinstance(types[place], TensorType):
                    types[place] = plan.inputs[model]
    return tuple(types)
