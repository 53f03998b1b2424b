"""Joints: the backward of a differentiable body, recorded from torch's own derivative formulas.

    nested = Nested(division, {0: x, 1: w})  the body runs on detached inputs, under autograd, in graphs
    nested.values                            of its own; what it gives has no history
    grads, joint = nested.backward(0, tangents, is_kept)
                                             those graphs run backward under the true tangents

The body is functional and divided in classes (`transform/divide.py`); each class is a graph of
autograd that begins at leaves of its own, one for each use of a value, and ends at its results. One
recorder sees the forward and every backward, so what a formula has saved is known by its identity.
What no gradient hangs on, and what computes with numbers that change, is taken over as it is. Inside a
region formulas save nothing: its ops run again in the backward, and are part of the joint, marked with
their region (`bridge/recomputed.py`). What the body writes to its inputs outside of autograd is written,
once.

Requires: autocast is off (its casts are ops of the body), no foreign mode is active. Guarantees:
values, gradients and errors are torch's own; a second backward raises unless the first was told to
keep the graph; a joint that cannot be recorded is None, with a reason, and its gradients are right.
"""

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from preheat.base.errors import Unsupported
from preheat.base.identity import identity
from preheat.bridge.ambient import is_autocast_on
from preheat.bridge.generators import standing_at
from preheat.bridge.interpret import define
from preheat.bridge.formulas import with_formula
from preheat.bridge.numbered import taking_symbols
from preheat.bridge.ops import arguments, decode, overload, schema, unseen_values, writes_unseen
from preheat.bridge.recomputed import Recomputed, redrawn
from preheat.bridge.redraw import is_draw
from preheat.bridge.regions import STANDING
from preheat.bridge.symint import is_box
from preheat.bridge.tensors import is_batched, is_plain, type_of, unusual_keys
from preheat.capture.held import Held
from preheat.capture.recorder import Recorder
from preheat.ir.graph import CARRY, Arg, Graph, Input, Item, Op, Ref, copied_into, map_refs
from preheat.ir.training import Division, Joint
from preheat.ir.types import ScalarType, TensorType

Tensors = Sequence[torch.Tensor | None]


class Nested:
    """One run of `division` on `inputs`, that can be run backward.

    inputs      tensors and numbers by place; where the body does not write, only those that are `needed`
    connected   (class, its arguments): gradients of this class alone are wanted, and they shall be
                differentiable functions of these arguments
    writes      whether to write to the inputs what the body writes; else what no gradient hangs on does
                not run
    """

    def __init__(
        self, division: Division, inputs: Mapping[int, Any], *,
        connected: tuple[int, Sequence[torch.Tensor]] | None = None, writes: bool = True,
    ):
        self.division = division
        self._sources = sources = {}  # of tangents: places after all inputs
        self._refusals = refusals = []
        # neither function knows this object: a cycle would hold its tensors
        self._recorder = self._listening(
            lambda tensor: sources.get(identity(tensor)),
            lambda reason, detail: refusals.append(f"{reason}: {detail}"))
        self._leaves: list[list[torch.Tensor]] = [
            [None] * len(one.args) for one in division.classes]
        self._connected, self._writes = connected, writes
        self._places = [
            {(value, use): place for place, (value, use) in enumerate(zip(one.args, one.uses))}
            for one in division.classes]
        self._grads = frozenset(division.graph.grads)
        self._inputs_that_are_numbers = frozenset(
            given.id for given in division.graph.inputs if isinstance(given.type, ScalarType))
        self._recorder.held = Held(self._recorder.stop) if has_items(division.graph) and connected is None else None
        self._recorder.is_boxed |= self._recorder.held is not None
        self._regions: dict[int, Recomputed] = {}  # while the body runs
        self._numbers: dict[int, int | None] = {}  # of values that are written: what the record calls them
        # what the record calls inputs, and values that it has not seen made
        self._renamed = {
            given.id: self._recorder.new_input(place, given.type, tensor=inputs.get(place))
            for place, given in enumerate(division.graph.inputs)}
        with self._recorded():
            values = self._run(inputs)
            if writes:
                self._write(inputs, values)
        self._living = weakref.WeakSet(self._regions.values())  # as long as something saved is theirs
        self._regions.clear()
        self._kept = [inputs[place] for place in division.needed]  # as long as their ids mean them
        self._locals = [[values[v] for v in one.results] for one in division.classes]
        # of a run that writes all of them
        self.values = [self._plain(values[v]).detach() for v in division.values if v in values]
        self._forward = None if self.why_not_recorded else self._forward_graph(values, writes)

    def _listening(self, outside: Callable, fail: Callable) -> Recorder:
        return Recorder(outside, fail, no_constant, no_test)

    @property
    def why_not_recorded(self) -> str:
        """The first thing that kept the run from being recorded, or ""."""
        return self._refusals[0] if self._refusals else ""

    @property
    def forward(self) -> Graph | None:
        """What was run, at level aten: all inputs, then the division's values as outputs."""
        return None if self.why_not_recorded else self._forward

    def backward(
        self, number: int, tangents: Tensors, is_kept: bool,
    ) -> tuple[list[torch.Tensor | None], Joint | None]:
        """The gradients of class `number` for its arguments, and what computed them."""
        results, leaves = self._locals[number], self._leaves[number]
        given = [k for k, tangent in enumerate(tangents) if tangent is not None]
        if any(is_batched(tangents[k]) for k in given):  # formulas run for all of them at once, unseen
            return torch.autograd.grad(
                [results[k] for k in given], leaves, [tangents[k] for k in given],
                retain_graph=is_kept, allow_unused=True), None
        # two results may be given one tangent object: apart, they are told apart in the record
        own = [tangents[k].detach() for k in given]
        first, builder = len(self._recorder.builder.ops), self._recorder.builder
        for tangent in own:
            self._sources[identity(tangent)] = len(self.division.graph.inputs) + len(self._sources)
        self._kept += own
        with self._recorded():
            grads = torch.autograd.grad(
                [results[k] for k in given], leaves,
                [self._as_result(t, results[k]) for t, k in zip(own, given)],
                retain_graph=is_kept, allow_unused=True)
        for region in self._living:
            region.let_go()
        grads = [None if g is None else self._plain(g) for g in grads]
        # of zeros without memory torch computes nothing: no other tangent is like them
        is_odd = any(not is_plain(t) or t.is_conj() or t.is_neg() or unusual_keys(t) for t in own)
        if self.why_not_recorded or is_autocast_on() or is_odd:
            return grads, None
        read = [self._recorder.value_of(tangent) for tangent in own]
        strides = iter([self._type_of(tangent).strides for tangent in own])
        key = tuple(None if t is None else next(strides) for t in tangents)
        joint = self._joint(number, key, builder.ops[first:], own, read, grads)
        return grads, joint

    def differentiable(self, number: int, tangents: Tensors) -> list[torch.Tensor | None]:
        """The gradients of the connected class, themselves differentiable."""
        given = [k for k, tangent in enumerate(tangents) if tangent is not None]
        results = self._locals[number]
        return list(torch.autograd.grad(
            [results[k] for k in given], self._leaves[number], [tangents[k] for k in given],
            create_graph=True, allow_unused=True))

    def ends(self, number: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Results and leaves of the graph of class `number`."""
        return self._locals[number], self._leaves[number]

    # ------------------------------------------------------------------ the forward
    def _run(self, inputs: Mapping[int, Any]) -> dict[int, Any]:
        division = self.division
        graph, last = division.graph, _last_uses(division)
        types = [given.type for given in graph.inputs]
        values = {
            graph.inputs[place].id:
                self._shown(one, types[place]) if isinstance(types[place], TensorType) else one
            for place, one in inputs.items()}
        for place in division.replaced:  # what a formula saves of them must outlast the write
            value = graph.inputs[place].id
            values[value] = values[value].detach().clone()
        written = {value for pair in graph.stored for value in pair}
        redrawing = {op.args[0] for op in graph.ops if op.name == STANDING}
        for position, op in enumerate(graph.ops):
            if self._is_taken_over(position):
                self._take_over(op, values, self._writes or position not in division.apart)
                self._numbers.update((r, self._renamed.get(r)) for r in written.intersection(op.results))
                for value in last[position]:
                    values.pop(value, None)
                continue
            with self._saving(op, values):
                self._perform(position, values, self._leaf)
            if op.name == STANDING:
                self._region(op.args[0]).standing = values[op.result]
            elif op.region in self._regions and op.region not in redrawing and is_draw(op):
                self._region(op.region).drawn[position] = [values[result] for result in op.results]
            for value in written.intersection(op.results):
                self._numbers[value] = self._recorder.value_of(self._plain(values[value]))
            for value in last[position]:
                del values[value]
        return values

    def _perform(
        self, position: int, values: dict[int, torch.Tensor],
        leaf: Callable[[int, int, torch.Tensor], torch.Tensor],
    ) -> None:
        """Runs one op. `leaf(number, place, tensor)`: what class `number` uses for its argument."""
        division = self.division
        op, number = division.graph.ops[position], division.class_of[position]
        operands = {value: values[value] for value in op.refs()}
        for value in operands if number >= 0 else ():
            place = self._places[number].get((value, position))
            if place is not None:
                operands[value] = leaf(number, place, operands[value])
            elif value not in self._grads and operands[value].requires_grad:
                operands[value] = operands[value].detach()
        with torch.set_grad_enabled(number >= 0 and op.is_grad_enabled):
            items = items_of(op)
            if items and self._recorder.held is not None and torch.is_grad_enabled():
                define(op, self._with_formula(op, operands | self._symbols(items, operands)), values)
            else:
                define(op, self._call(op, operands | self._elements(items, operands)), values)
            if len(op.results) == 1 and isinstance(op.type, TensorType):
                self._lay_out(op, values)

    def _elements(self, items: Sequence[int], operands: dict[int, Any]) -> dict[int, int | float]:
        """The elements of the tensors `items`, unseen."""
        with self._recorder.paused():
            return {value: self._plain(operands[value]).item() for value in items}

    def _symbols(self, items: Sequence[int], operands: dict[int, Any]) -> dict[int, Any]:
        """The same as symbols; as they are where nothing is recorded."""
        recorder, numbers = self._recorder, self._elements(items, operands)
        if recorder.is_stopped:
            return numbers
        return {value: recorder.held.box(recorder.value_of(self._plain(operands[value])), number)
                for value, number in numbers.items()}

    def _with_formula(self, op: Op, operands: dict[int, Any]) -> Any:
        """What an op gives that takes numbers which change."""
        recorder, given = self._recorder, {
            key: self._decoded(arg, operands) for key, arg in arguments(with_refs(op)).items()}
        keyword = {p.name for p in schema(op.name).parameters if p.is_keyword_only}

        def call(given: dict) -> Any:
            return self._meaning(op)(
                *(value for key, value in given.items() if key not in keyword),
                **{key: value for key, value in given.items() if key in keyword})

        return with_formula(
            op.name, call, given, lambda: recorder.is_entered, [result in self._grads for result in op.results])

    def _meaning(self, op: Op) -> Callable:
        """What is called for an op that may be given symbols."""
        return self._meanings().get(op.name) or taking_symbols(op.name)

    def _meanings(self) -> Mapping[str, Callable]:
        """What is called for some ops in their place."""
        return MEANINGS

    def _decoded(self, arg: Arg, operands: dict[int, Any]) -> Any:
        return decode(arg, operands)

    def _saving(
        self, op: Op, values: dict[int, torch.Tensor],
    ) -> contextlib.AbstractContextManager:
        """Where `op` runs: within a region nothing is saved, but to be differentiated twice."""
        if not op.region or self._connected is not None:
            return contextlib.nullcontext()
        region = self._region(op.region)
        region.meet(op.refs(), op.results, values)
        return region.saving()

    def _region(self, number: int) -> Recomputed:
        region = self._regions.get(number)
        if region is None:
            own = weakref.ref(self)  # which holds the graph that will hold the region
            region = self._regions[number] = Recomputed(
                number, lambda *given: own()._run_again(*given))
        return region

    def _run_again(
        self, region: Recomputed, operands: Callable[[], dict[int, torch.Tensor]],
    ) -> None:
        """The ops of a region once more, recorded as such."""
        recorder, first = self._recorder, len(self._recorder.builder.ops)
        recorder.region = region.number
        state = None if region.standing is None else (region.standing,)
        try:
            with standing_at("cpu", state):
                values = operands()
                for position, op in enumerate(self.division.graph.ops):
                    if position in region.drawn:
                        define(op, region.drawn[position], values)
                    elif op.region == region.number and not self._is_taken_over(position):
                        self._perform(
                            position, values, lambda *given: given[-1].detach().requires_grad_())
        finally:
            recorder.region = 0
            if region.standing is not None and not recorder.is_stopped:
                redrawn(recorder, first, region.standing)

    def _is_taken_over(self, position: int) -> bool:
        """Whether autograd has nothing to do with an op: no gradient hangs on it, or it takes numbers that
        change."""
        op = self.division.graph.ops[position]
        return position in self.division.apart or not self._inputs_that_are_numbers.isdisjoint(op.refs())

    def _take_over(self, op: Op, values: dict[int, Any], is_run: bool) -> None:
        """Appends an op without gradients to the record as it is, and runs it unseen."""
        recorder, renamed = self._recorder, self._renamed
        if not recorder.is_stopped:
            def number(value: int) -> Ref:
                return Ref(self._number(value, values))

            made = _alone(op)
            args = tuple(map_refs(arg, number) for arg in made.args)
            attrs = tuple((key, map_refs(arg, number)) for key, arg in made.attrs)
            renamed.update((result, recorder.builder.fresh()) for result in op.results if result != -1)
            recorder.take_over(replace(
                made, args=args, attrs=attrs,
                results=tuple(renamed.get(result, -1) for result in op.results)))
        if not is_run:
            return
        operands = {
            value: self._plain(values[value]) if isinstance(values[value], torch.Tensor) else values[value]
            for value in op.refs()}
        with recorder.away(), torch.no_grad():
            define(op, self._computed(op, operands), values)
            if len(op.results) == 1 and isinstance(op.type, TensorType):
                self._lay_out(op, values)
        for result, type in zip(op.results, op.types):
            if isinstance(type, TensorType) and result != -1:
                if not recorder.is_stopped:
                    recorder.learn(values[result], renamed[result])
                values[result] = self._shown(values[result], type)

    def _number(self, value: int, values: dict[int, Any]) -> int | None:
        """What the record calls `value` of the division."""
        if value in values and isinstance(values[value], torch.Tensor):
            return self._recorder.value_of(self._plain(values[value]))  # of an input, perhaps its copy
        return self._renamed.get(value)

    def _leaf(self, number: int, place: int, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor that a class uses for its argument `place`."""
        if self._connected is not None and self._connected[0] == number:
            argument = self._connected[1][place]
            is_replaced = tensor is not argument and tensor.data_ptr() != argument.data_ptr()
            leaf = (  # of one use: other uses have gradients of their own
                _carry(tensor, argument) if is_replaced else argument.view_as(argument))
        else:
            leaf = tensor.detach().requires_grad_()
        self._leaves[number][place] = leaf
        return leaf

    def _write(self, inputs: Mapping[int, Any], values: dict[int, Any]) -> None:
        """What the body writes to its inputs outside of autograd."""
        unseen = unseen_values(self.division.graph)
        with torch.no_grad():
            for place, value in self.division.plain_writes:
                # through `.data` its version stays, as in eager where the op hides its write
                tensor = inputs[place].data if value in unseen else inputs[place]
                tensor.copy_(values[value])

    def _forward_graph(self, values: dict[int, Any], writes: bool) -> Graph | None:
        """What was recorded, and at its end the writes that this run did not make."""
        unwritten = () if writes else self.division.plain_writes
        outputs = [self._number(value, values) for value in self.division.values]
        written = [self._number(value, values) for _, value in unwritten]
        if None in outputs or None in written:
            return None
        given = tuple(
            Input(self._renamed[one.id], one.type, one.name, one.alias_set)
            for one in self.division.graph.inputs)
        copies = tuple(
            replace(copied_into(given[place], value), is_grad_enabled=False)
            for (place, _), value in zip(unwritten, written))
        return Graph("aten", given, (*self._recorder.builder.ops, *copies), tuple(outputs))

    # ------------------------------------------------------------------ what formulas see
    def _computed(self, op: Op, operands: dict[int, Any]) -> object:
        """What `op` gives, outside of the record."""
        return self._call(op, operands)

    def _shown(self, tensor: torch.Tensor, type: TensorType) -> torch.Tensor:
        """An input, or a tangent, as torch's formulas shall see it."""
        return tensor

    def _as_result(self, tangent: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
        """The same of a tangent of `result`."""
        return tangent

    def _plain(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor that the formulas see as `tensor`."""
        return tensor

    def _type_of(self, tangent: torch.Tensor) -> TensorType:
        return type_of(tangent)

    def _call(self, op: Op, operands: dict[int, torch.Tensor]) -> object:
        if not self._writes:
            operands = operands | {value: operands[value].clone() for value in writes_unseen(op)}
        op = with_refs(op)
        args = [self._decoded(arg, operands) for arg in op.args]
        return (self._meanings().get(op.name) or overload(op.name))(
            *args, **{key: self._decoded(arg, operands) for key, arg in op.attrs})

    def _lay_out(self, op: Op, values: dict[int, torch.Tensor]) -> None:
        """The result of `op` in the strides of its type: those of the memory that a write was to, which
        torch may not choose where it does not write in place."""
        (result,), (type,) = op.results, op.types
        made = values[result]
        if made.stride() != type.strides and 0 not in type.strides:
            laid = torch.empty_strided(
                type.sizes, type.strides, dtype=made.dtype, device=made.device)
            values[result] = laid.copy_(made)

    # ------------------------------------------------------------------ the record
    @contextlib.contextmanager
    def _recorded(self) -> Iterator[None]:
        self._recorder.is_stopped = bool(self.why_not_recorded)
        self._recorder.enter()
        try:
            yield
        finally:
            self._recorder.leave()

    def _joint(
        self, number: int, key: tuple, ops: Sequence[Op], own: Sequence[torch.Tensor],
        tangents: Sequence[int | None], grads: Tensors,
    ) -> Joint | None:
        types = self._recorder.builder.type_of
        made = {result for op in ops for result in op.results}
        given = [t if t is not None else self._recorder.builder.fresh() for t in tangents]
        passed = {identity(tangent): value for tangent, value in zip(own, given)}  # perhaps by no op
        results = [
            None if g is None else passed.get(identity(g), self._recorder.value_of(g)) for g in grads]
        if any(g is not None and r is None for g, r in zip(grads, results)):
            self._refusals.append("untracked_tensor: a gradient")
            return None
        read = dict.fromkeys(
            v for v in (*(v for op in ops for v in op.refs()), *(r for r in results if r is not None))
            if v not in made and v not in given)
        inputs = [*read, *given]
        outputs = list(dict.fromkeys(r for r in results if r is not None and r in made))
        where = {value: place for place, value in enumerate(outputs)}
        where |= {value: -2 - place for place, value in enumerate(inputs)}
        of_tangent = {value: self._type_of(tangent) for value, tangent in zip(given, own)}
        graph = Graph(
            "aten", tuple(Input(v, of_tangent.get(v) or types[v]) for v in inputs), tuple(ops),
            tuple(outputs))
        return Joint(
            number, key, graph, tuple(read),
            tuple(-1 if r is None else where[r] for r in results), self._holders(read))

    def _holders(self, read: Iterable[int]) -> tuple[int, ...]:
        """Where the program has written what is `read`, see `Joint`."""
        root, found = self._recorder.root, {}
        taken = {root.get(value, value) for value in read}
        for written, memory in self.division.graph.stored:
            pair = self._numbers.get(written), self._numbers.get(memory)
            if None not in pair and root[pair[0]] in taken:
                found[root[pair[1]]] = None
                taken.add(root[pair[1]])
        return tuple(found)


# ---------------------------------------------------------------------------- one op
def items_of(op: Op) -> list[int]:
    """The values of which an op takes the element."""
    return [arg.id for arg in (*op.args, *(arg for _, arg in op.attrs)) if isinstance(arg, Item)]


def has_items(graph: Graph) -> bool:
    return any(map(items_of, graph.ops))


def with_refs(op: Op) -> Op:
    """`op` with the number itself for each element that it takes."""
    def number(arg: Arg) -> Arg:
        return Ref(arg.id) if isinstance(arg, Item) else arg

    return op if not items_of(op) else replace(
        op, args=tuple(map(number, op.args)), attrs=tuple((key, number(arg)) for key, arg in op.attrs))


def _alone(op: Op) -> Op:
    """`op` outside of autograd, as an op of torch."""
    if op.name == CARRY:
        op = replace(op, name="aten.clone.default", args=op.args[:1])
    return replace(op, is_grad_enabled=False)


def _carry(new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    made = old.clone()
    with torch.no_grad():
        made.copy_(new)
    return made


def _copy(old: torch.Tensor, new: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    return old.clone().copy_(new)  # the gradient of what is written over is zero, not absent


def _batch_norm(x, weight, bias, mean, variance, *rest):
    """The derivative of the functional overload would read the statistics that are written next."""
    mean, variance = mean.clone(), variance.clone()
    norm = overload if not any(map(is_box, rest)) else taking_symbols
    made = norm("aten.native_batch_norm.default")(x, weight, bias, mean, variance, *rest)
    return *made, mean, variance


def _dropout(x: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    return x * scale * mask  # torch's own derivative would round the scale to 16 bits


# Functional ops that torch has no derivative for, or no op, or whose derivative reads too much.
MEANINGS: dict[str, Callable] = {
    CARRY: _carry,
    "aten.copy.default": _copy,
    "aten.native_dropout_backward.default": _dropout,
    "aten._native_batch_norm_legit_functional.default": _batch_norm,
}


def _last_uses(division: Division) -> list[list[int]]:
    """For each op the values that nothing needs after it."""
    graph = division.graph
    kept = {
        *(given.id for given in graph.inputs), *(value for _, value in graph.writes),
        *division.values, *(value for one in division.classes for value in one.results)}
    last: dict[int, int] = {}
    for position, op in enumerate(graph.ops):
        last.update(dict.fromkeys((*op.refs(), *(r for r in op.results if r != -1)), position))
    found: list[list[int]] = [[] for _ in graph.ops]
    for value, position in last.items():
        if value not in kept:
            found[position].append(value)
    return found


def no_constant(tensor: torch.Tensor) -> int:
    raise Unsupported("untracked_tensor", "a constant in a recorded backward")


def no_test(*_: object) -> None:
    raise Unsupported("data_dependent_branch", "a test in a recorded backward")
