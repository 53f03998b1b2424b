"""Handover: a backward in stages, so that the first gradients leave before the last are computed.

    (%0, %1): %2 = mul(%0, %1); %3 = mul(%2, %0); return %2, %3
        ->    (%0, %1): %2 = mul(%0, %1); return %2, and carry it and %0
              (%2, %0): %3 = mul(%2, %0); return %3

Who waits for gradients (DDP sends them, a hook updates parameters with them) works on those of the
last layers while those of the first are computed. A stage ends where enough bytes of gradients are
there. What later stages need is carried on, apart from movement and constants, which are done again.

Requires the backward of one joint at level core, gradients in the order in which they are made.
Guarantees: each op runs in one stage, in the order that it had; a gradient that has left is read by
no later stage, since who has got it may change it, and neither is the tensor that it is of: a hook
may update a parameter.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from preheat.base.dataclass import dataclass
from preheat.base.identity import identity
from preheat.ir.graph import Graph, Input, Op, Ref
from preheat.ir.hinted import estimate
from preheat.ir.ops import CORE
from preheat.ir.training import Exit, Given
from preheat.ir.types import TensorType
from preheat.transform.halves import Half

_DONE_AGAIN = frozenset(("movement", "creation"))


@dataclass(frozen=True)
class Stage:
    """takes    where each input of `graph` is found: as of a `Half`, or Given("carried", k): the k-th
                of what the stage before carries
       grads    for each argument of the class its gradient, None for none in this stage
       carries  for the next stage: results of `graph`, or what this one was given
    """

    graph: Graph
    takes: tuple[Given, ...]
    grads: tuple[Exit | None, ...]
    carries: tuple[Given, ...] = ()


def stages(half: Half, arguments: Sequence[Given], most_bytes: int) -> tuple[Stage, ...]:
    """`half` of a class with these `arguments`, cut wherever `most_bytes` of gradients have come together; whole for 0, and where an error
    may have to arise, which needs all that the half was given."""
    groups = _groups(half, most_bytes) if most_bytes and not half.can_raise else []
    if len(groups) < 2:
        return (Stage(half.graph, half.takes, half.grads),)
    cut = _Cut(half, arguments, groups)
    return tuple(map(cut.stage, range(len(cut.groups))))


def _groups(half: Half, most_bytes: int) -> list[list[int]]:
    """The results of the half, in the order in which they are made, as they leave together."""
    graph, types = half.graph, half.graph.types()
    made_at = {result: at for at, op in enumerate(graph.ops) for result in op.results}
    groups: list[list[int]] = [[]]
    size, last = 0, -1
    for value in sorted(dict.fromkeys(graph.outputs), key=made_at.__getitem__):
        if size >= most_bytes and made_at[value] != last:
            groups.append([])
            size = 0
        groups[-1].append(value)
        type, last = types[value], made_at[value]
        size += estimate(type.elems * type.itemsize) if isinstance(type, TensorType) else 0
    return groups


class _Cut:
    """A half and what each stage of it computes, needs and hands on."""

    def __init__(
        self, half: Half, arguments: Sequence[Given], groups: Sequence[Sequence[int]],
    ):
        self.half, self.types = half, half.graph.types()
        self.maker = {result: op for op in half.graph.ops for result in op.results if result != -1}
        self.given_of = dict(zip((given.id for given in half.graph.inputs), half.takes))
        self.groups: list[list[int]] = []  # of gradients that leave together
        self.ops: list[tuple[Op, ...]] = []
        self.made: list[frozenset[int]] = []  # by the ops of a stage
        done: set[int] = set()
        readers, waiting = self._readers(arguments), [value for group in groups for value in group]
        for group in groups:
            leaving = [value for value in group if value in waiting]
            while leaving:  # what has to be computed by then may be gradients itself
                wanted = (*leaving, *(value for end in leaving for value in readers.get(end, ())))
                ops = self._ops(wanted, done)
                made = frozenset(result for op in ops for result in op.results if result != -1)
                more = [value for value in waiting if value in made and value not in leaving]
                if not more:
                    break
                leaving += more
            if not leaving:
                continue
            waiting = [value for value in waiting if value not in leaving]
            done |= {v for v in made if CORE[self.maker[v].name].kind not in _DONE_AGAIN}
            self.groups.append(leaving)
            self.ops.append(ops)
            self.made.append(made)
        self.needs = [
            [*dict.fromkeys(ref for op in ops for ref in op.refs() if ref not in made)]
            for ops, made in zip(self.ops, self.made)]
        # what is carried from a stage to the next: what that one and those after it need
        self.carried: list[list[int]] = [[] for _ in self.groups]
        for number in range(len(self.groups) - 2, -1, -1):
            later = [v for v in self.carried[number + 1] if v not in self.made[number + 1]]
            self.carried[number] = [*dict.fromkeys((*self.needs[number + 1], *later))]

    def stage(self, number: int) -> Stage:
        half, made = self.half, self.made[number]
        results, ops = list(self.groups[number]), list(self.ops[number])
        carries, fresh = [], half.graph.next_id()
        for value in self.carried[number]:
            if value not in made:
                carries.append(self._given(number, value))
                continue
            if value in self.groups[number]:  # it leaves: what is carried is a copy
                type = self.types[value]
                ops.append(Op("cast", (Ref(value),), (fresh,), (type,), (("dtype", type.dtype),)))
                value, fresh = fresh, fresh + 1
            carries.append(Given("plan", len(results)))
            results.append(value)
        inputs = tuple(Input(value, self.types[value]) for value in self.needs[number])
        return Stage(
            Graph("core", inputs, tuple(ops), tuple(results)),
            tuple(self._given(number, value) for value in self.needs[number]),
            self._grads(number), tuple(carries))

    def _ops(self, group: Iterable[int], done: set[int]) -> tuple[Op, ...]:
        """What computes `group` from what is `done`, in order."""
        found: set[int] = set()
        stack = [*group]
        while stack:
            value = stack.pop()
            if value in self.maker and value not in done and identity(self.maker[value]) not in found:
                found.add(identity(self.maker[value]))
                stack += self.maker[value].refs()
        return tuple(op for op in self.half.graph.ops if identity(op) in found)

    def _readers(self, arguments: Sequence[Given]) -> dict[int, list[int]]:
        """For each gradient what is computed from the very tensor that it is of, by where it is made."""
        graph = self.half.graph
        input_of = {given: value for value, given in self.given_of.items()}
        found: dict[int, list[int]] = {}
        for argument, exit in zip(arguments, self.half.grads):
            if exit is None or exit.given.kind != "plan" or argument not in input_of:
                continue
            seen, readers = {input_of[argument]}, []
            for op in graph.ops:
                if not seen.isdisjoint(op.refs()):
                    made = [result for result in op.results if result != -1]
                    if CORE[op.name].kind in _DONE_AGAIN:
                        seen.update(made)
                    else:
                        readers += made[:1]
            found.setdefault(graph.outputs[exit.given.index], []).extend(readers)
        return found

    def _given(self, number: int, value: int) -> Given:
        """Where stage `number` finds a value that it does not make."""
        if number:
            return Given("carried", self.carried[number - 1].index(value))
        return self.given_of[value]

    def _grads(self, number: int) -> tuple[Exit | None, ...]:
        outputs, group = self.half.graph.outputs, self.groups[number]
        grads: list[Exit | None] = []
        for exit in self.half.grads:
            if exit is None or exit.given.kind != "plan":  # what is given leaves first
                grads.append(exit if number == 0 else None)
                continue
            value = outputs[exit.given.index]
            is_here = value in group
            grads.append(replace(exit, given=Given("plan", group.index(value))) if is_here else None)
        return tuple(grads)
