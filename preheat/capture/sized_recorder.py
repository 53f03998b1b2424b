"""The part of the recorder that stands where sizes change: types with symbols, tensors as C sees them.

    aten.mm(%0: f32[n3, 6], %1)     find_types: f32[n3, 8], by the rule of the op (`sizes.py`)
    x.is_contiguous() in C++        typed: the type of which a rule knows the layout

What C++ computes with sizes is seen only where it is given tensors with symbols (`Shown`); an op that
comes without them, from a call that was not, pins the sizes of its operands.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from preheat.base.identity import identity
from preheat.bridge.ambient import AMBIENT
from preheat.bridge.ops import arguments
from preheat.bridge.overloads import Overload
from preheat.bridge.symint import Shown, scalar_of
from preheat.bridge.tensors import Tensor, type_of
from preheat.capture.held import Held
from preheat.capture.size_views import are_slices_apart
from preheat.capture.sizes import SizeRules, is_symbolic
from preheat.ir.graph import Arg, Builder, Item, Op, Ref, map_refs
from preheat.ir.scalar import Scalar
from preheat.ir.types import ScalarType, TensorType, Type

# What attributes of a tensor do (`x.T`), whatever its sizes.
WITHOUT_SIZES = frozenset((
    "aten.t.default", "aten.transpose.int", "aten.permute.default", "aten.alias.default",
    "aten.detach.default", "aten.view_as_real.default", "aten.real.default",
))


class SizedRecorder:
    """See the module docstring. `rules` is None until a size becomes a symbol."""

    builder: Builder
    is_boxed: bool
    is_stopped: bool
    values: dict[int, Any]
    fixed_roots: set[int]
    number: Callable[[Scalar], int] | None  # gives a source to a number
    inputs_of_numbers: dict[int, int]  # source -> input value
    root: dict[int, int]  # value -> first value of its storage
    new_input: Callable[[int, Type], int]
    paused: Callable[[], Any]
    _learn: Callable[[Tensor, int], int]
    held: Held | None = None  # of a backward that is recorded: numbers that are elements of tensors
    rehearsal: Any = None  # of the call under way, if it is made twice: see `rehearsal.py`
    is_rehearsing = False  # it is being made again

    def has_sizes(self) -> None:
        """A number of the program becomes the size of a tensor. (Who listens puts a function here.)"""

    def begin_sizes(self) -> None:
        """A new graph, without symbols so far."""
        self.rules: SizeRules | None = None
        self.show: Callable[[Tensor], Tensor] = lambda tensor: tensor
        self.scalars: dict[int, Scalar] = {}  # the numbers among the inputs
        self.found: dict[int, TensorType] = {}  # of the results of the op under way, by id

    def find_types(
        self, facts: Overload, name: str, args: tuple, attrs: tuple, out: Any,
    ) -> None:
        """Finds the types, with symbols, of the tensors that an op gave: `_found`, by their ids."""
        made = list(tensors_in(out if type(out) in (tuple, list) else (out,)))
        args, attrs = (map_refs(a, lambda value: self.scalars.get(value, Ref(value)))
                       for a in (args, attrs))
        op = Op(name, args, (), (), attrs)
        if not self.is_boxed and name not in WITHOUT_SIZES and not self._is_of_parts(op):
            for ref in op.refs():  # C++ has computed with the sizes of this call, unseen
                self.rules.pin(self.builder.type_of[ref])
        types = self.rules.types(
            op, self.builder.type_of.__getitem__, list(map(type_of, made)), facts.is_pointwise)
        self.found = {identity(tensor): type for tensor, type in zip(made, types)}

    def _is_of_parts(self, op: Op) -> bool:
        """Whether `op` is the second half of `z.real` or `z.imag`, whatever the sizes of z."""
        before = self.builder.ops[-1] if self.builder.ops else op
        return (op.name, before.name) == ("aten.select.int", "aten.view_as_real.default") and (
            op.args[0] == Ref(before.results[0]))

    def number_of(self, box: Any) -> Arg:
        """The input that gives the number of `box`, or a number that is known."""
        scalar = scalar_of(box)
        if not isinstance(scalar, Scalar):
            return scalar
        if self.held is not None and self.held.holds(scalar):
            return Item(self.held.value(self, scalar))
        is_taught = self.number is None or AMBIENT["grad_enabled"]()
        if is_taught and self.rules is not None and self.rules.numbers.is_of_sizes(scalar):
            return scalar  # a derivative is taken at each size: no number among its inputs
        source = self.number(scalar)
        value = self.inputs_of_numbers.get(source)
        if value is None:
            value = self.inputs_of_numbers[source] = self.new_input(source, ScalarType(scalar.type))
        self.scalars[value] = scalar
        return Ref(value)

    def noted(self, function: Any, out: Any, place: int = -1) -> Any:
        """`out`, which `function` gave; the op at `place` of the graph, if it is one."""
        if self.rehearsal is not None:
            self.rehearsal.noted.append((function, place, out))
        return out

    def is_fixed_no_longer(self, values: tuple[int, ...]) -> None:
        """Sizes decide what these hold, and what follows from them in the call under way."""
        first = min((value for value in values if value >= 0), default=self.builder.next_id)
        self.fixed_roots = {root for root in self.fixed_roots if root < first}

    def typed(self, shown: Shown, *args: Any) -> tuple[TensorType, str]:
        """The type of a tensor that C asks about, and the memory format that it asks for."""
        name = str(args[0]).removeprefix("torch.") if args else "contiguous_format"
        return shown.shown_type, name

    def is_now(self, type: Type, tensor: Tensor) -> bool:
        """Whether `tensor` is of the type, which may have symbols, in this call."""
        if self.rules is not None and is_symbolic(type):
            type = self.rules.evaluated(type, tensor)
        return type == type_of(tensor)

    def pin_relatives(self, written: int, operands: Iterable[int]) -> None:
        """Other views of the memory that is written do not meet it in part in this call: what says which
        part they are is pinned, unless they never do."""
        for operand in operands:
            if operand == written or self.root[operand] != self.root[written]:
                continue
            chains = [self._views_to(value) for value in (written, operand)]
            if not _are_same_or_apart(*chains) and not self._are_told_apart(*chains):
                self.rules.pin_within(
                    [self.builder.type_of[value] for value in (written, operand)],
                    tuple([op.args for chain in chains for op in chain]))

    def _are_told_apart(self, first: Sequence[Op], second: Sequence[Op]) -> bool:
        """Whether the first step by which two chains of views differ takes other parts of one axis, as a guard says."""
        if not (first and second) or first[0].args[0] != second[0].args[0]:
            return False
        one, other = next(((a, b) for a, b in zip(first, second) if not _is_same_step(a, b)), (None, None))
        if one is None or {one.name, other.name} != {"aten.slice.Tensor"}:
            return False
        return are_slices_apart(self.rules.numbers, self.builder.type_of[one.args[0].id], arguments(one), arguments(other))

    def _views_to(self, value: int) -> list[Op]:
        """The views by which `value` was taken from the memory that it is in, the first one first."""
        above = self._views(self.builder.ops)
        steps: list[Op] = []
        while value in above:
            steps.insert(0, above[value])
            value = steps[0].args[0].id
        return steps

    @staticmethod
    def _views(ops: Sequence[Op]) -> dict[int, Op]:
        """The op that gave each view."""
        return {
            result: op for op in ops for result, alias in zip(op.results, op.aliases)
            if alias not in (-1, result)}

    def as_view(self, tensor: Tensor, mark: tuple) -> Tensor:
        """`tensor`, if ops since `mark` gave it, as a view of what they were given, or detached of that;
        itself where it is neither, or autograd knows."""
        value = self.value_of(tensor)
        ops = self.builder.ops[mark[1] if mark[0] is self.builder else 0:]
        above = self._views(ops)
        if tensor._is_view() or tensor.is_inference() or value not in above:
            return tensor
        steps = [above[value]]
        while steps[-1].args[0].id in above:
            steps.append(above[steps[-1].args[0].id])
        base_value, are_detached = steps[-1].args[0].id, [op.name == "aten.detach.default" for op in steps]
        if any(are_detached[1:]):
            return tensor
        base = next(
            (known() for known in reversed(self.values.values()) if known.value == base_value), None)
        if base is None or base is tensor or base.dtype != tensor.dtype or tensor.is_conj() or tensor.is_neg():
            return tensor
        with self.paused():
            view = base.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
            view = view.detach() if are_detached[0] else view
        self._learn(view, value)
        return view

    def seen_by_c(self, out: Any, place: int = -1) -> Any:
        """What C shall see for what an op gave; the op at `place` of the graph, if it is one."""
        if place >= 0:
            out = self.rules.seen(self.builder.ops[place], self.builder.type_of.__getitem__, out)
        if type(out) in (list, tuple):
            return type(out)([self.seen_by_c(part) for part in out])
        return self.show(out) if isinstance(out, Tensor) and type(out) is not Shown else out


def _are_same_or_apart(first: Sequence[Op], second: Sequence[Op]) -> bool:
    """Whether two chains of views of one value give the same elements, or none in common, whatever the
    sizes: they differ at most in the indices that they select."""
    is_of_one = bool(first and second) and first[0].args[0] == second[0].args[0]
    return is_of_one and len(first) == len(second) and all(map(_is_same_step, first, second))


def _is_same_step(first: Op, second: Op) -> bool:
    if first.results == second.results:
        return True
    kept = 2 if first.name == "aten.select.int" else None
    return len(first.results) == 1 and (
        (first.name, first.args[1:kept], first.attrs) == (second.name, second.args[1:kept], second.attrs))


def tensors_in(args: tuple | list) -> Iterator[Tensor]:
    """The tensors in arguments or results, lists and tuples deep."""
    for arg in args:
        if isinstance(arg, Tensor):
            yield arg
        elif type(arg) in (tuple, list):
            yield from tensors_in(arg)


def holds_scalar(arg: Any) -> bool:
    """Whether an argument of an op has an expression in it."""
    if isinstance(arg, tuple):
        return any(map(holds_scalar, arg))
    return isinstance(arg, Scalar)
