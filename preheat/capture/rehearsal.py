"""Rehearsal: what C computes with sizes in a call that autograd takes part in.

    y = x.flatten(1)        for real: autograd saves sizes as they are, the ops are noted
                            again, of tensors without memory: aten.view(x, (n3, n4*8)), and nothing runs

Autograd cannot be given symbols (`bridge/symint.py`) on the program's own tensors, and some of C looks at
plain sizes alone. So such a call is made twice: for real, with the numbers of this call, its ops recorded as
they come; then once more below autograd, with tensors and numbers as C shall see them (`Shown`), where each
op that comes is the next one of those noted, gives what that gave, and shows what its arguments are made of.
Composites come whole there: those of which C asks too much are spelled out (`folding.py`). An op that is not
the next one, or a number that is not its own, ends the rehearsal; after a second one, with nothing spelled
out, the sizes of the call are pinned.

Source: the same idea as a replay of a schedule against a log.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from preheat.bridge import bounds
from preheat.bridge.formulas import row_of
from preheat.bridge.overloads import facts_of
from preheat.bridge.symint import Shown, is_box, pin, plain, scalar_of, show, taken, unboxed
from preheat.bridge.tensors import Tensor, type_of
from preheat.capture.dispatching import answered, in_parts
from preheat.capture.folding import spelled
from preheat.capture.sized_recorder import holds_scalar, tensors_in
from preheat.ir.graph import Op
from preheat.ir.scalar import Scalar, apply
from preheat.ir.types import DTYPES, TensorType


_DETACH, _CLONE = "aten.detach.default", "aten.clone.default"
_WHOLE = (0, (1 << 63) - 1)  # the bounds of a slice of all
_TO_SIZES = frozenset(("aten.view.default", "aten._unsafe_view.default"))


class Mismatch(Exception):
    """The call does not do the same when it is made again."""


class Rehearsal:
    """The ops of one call, in order: `noted` has (function, its place in the graph or -1, what it
    gave). `show(tensor)`: the tensor as C shall see it."""

    def __init__(self, show: Callable[[Tensor], Any]) -> None:
        self.show = show
        self.noted: list[tuple[Any, int, Any]] = []
        self._next, self._is_spelled = 0, True

    def begin(self, is_spelled: bool) -> None:
        """The call is made again; `is_spelled`: without C's way of composing what `folding.py` knows."""
        self._next, self._is_spelled = 0, is_spelled

    def was(self, tensor: Tensor, before: Tensor) -> None:
        """What gave `tensor` until now, which becomes a view of itself, gave what it was before."""
        self.noted = [
            (func, place, before if out is tensor else out) for func, place, out in self.noted]

    def is_over(self, recorder: Any) -> bool:
        """Whether every op has come again."""
        self._skip(recorder)
        return self._next == len(self.noted)

    def dispatch(self, recorder: Any, func: Any, args: tuple, kwargs: dict) -> Any:
        """`__torch_dispatch__` of the recorder while the call is made again. Raises Mismatch."""
        out = answered(recorder, func, args, kwargs, Mismatch)
        if out is NotImplemented and self._is_spelled and not kwargs:
            with recorder:
                out = spelled(facts_of(func).name, args, recorder.rules.numbers)
        if out is NotImplemented:
            out = in_parts(recorder, func, args, kwargs)
        if out is not NotImplemented:
            return out
        if facts_of(func).name != _DETACH:
            self._skip(recorder, facts_of(func).name)
        if self._is_skipped(recorder, func, args):
            same = show(args[0].meant, args[0].shown_type, recorder.rules.numbers)
            return same.requires_grad_(args[0].requires_grad)
        if self._next == len(self.noted) or not self._is_noted(recorder, func):
            raise Mismatch(f"{facts_of(func).name} comes out of turn")
        _, place, out = self.noted[self._next]
        self._next += 1
        if place >= 0:
            retype(recorder, place, func, args, kwargs, out)
            out = recorder.rules.seen(
                recorder.builder.ops[place], recorder.builder.type_of.__getitem__, out)
        return self.seen(out)

    def _skip(self, recorder: Any, coming: str = "") -> None:
        """Passes over ops of autograd's, which detaches the results that it saves, and copies what is about to be
        written, where a derivative needs what it was.

        coming   the name of the op that comes next
        """
        while self._next < len(self.noted) and (
                facts_of(self.noted[self._next][0]).name == _DETACH or self._is_kept(recorder, coming)):
            _, place, out = self.noted[self._next]
            self._next += 1
            if place >= 0:
                _set_types(recorder, place, recorder.builder.ops[place], False, out)

    def _is_noted(self, recorder: Any, func: Any) -> bool:
        """Whether `func` is the next op; for an in-place view, which changes the sizes of its very argument, the view
        that it was recorded as may stand."""
        noted, place, _ = self.noted[self._next]
        return noted is func or place >= 0 and recorder.builder.ops[place].name == facts_of(func).name

    def _is_kept(self, recorder: Any, coming: str) -> bool:
        """Whether the next op that was noted is a copy of what the one behind it, which is coming, writes to."""
        (func, place, _), *behind = self.noted[self._next:self._next + 2]
        if not behind or facts_of(func).name != _CLONE or facts_of(behind[0][0]).name != coming:
            return False
        if place < 0 or behind[0][1] < 0:
            return False
        copied, writing = (recorder.builder.ops[k] for k in (place, behind[0][1]))
        return copied.args[0].id in writing.writes

    def _is_skipped(self, recorder: Any, func: Any, args: tuple) -> bool:
        """Whether an op of a subscript takes the whole of an axis: C leaves it out where it knows the sizes."""
        axis_and_bounds = args[1:]
        if facts_of(func).name != "aten.slice.Tensor" or type(args[0]) is not Shown:
            return False
        if not all(type(n) is int for n in axis_and_bounds) or axis_and_bounds[1:] != _WHOLE:
            return False
        noted, place, _ = self.noted[self._next] if self._next < len(self.noted) else (None, -1, None)
        return noted is not func or recorder.builder.ops[place].args[1:] != axis_and_bounds

    def seen(self, out: Any) -> Any:
        if type(out) in (list, tuple):
            return type(out)([self.seen(part) for part in out])
        return self.show(out) if isinstance(out, Tensor) and type(out) is not Shown else out


def retype(recorder: Any, place: int, func: Any, args: tuple, kwargs: dict, out: Any) -> None:
    """Gives the recorded op at `place` the arguments and types that it has for all sizes.

    Raises Mismatch if the arguments are not those of the op in this call.
    """
    op, numbers = recorder.builder.ops[place], recorder.rules.numbers
    if facts_of(func).name != op.name:  # an in-place view: its result is a tensor of other sizes
        raise Mismatch(op.name)

    def inlined(box: Any) -> Any:
        scalar = numbers.normal(scalar_of(box))
        return scalar if numbers.is_of_sizes(scalar) else pin(box)

    seen, named = taken(func, args, kwargs, recorder.rules.size_of)
    opened = {
        key: arg for key, arg in (*enumerate(seen), *named.items())
        if is_box(arg) and _is_open(recorder, op, func, key, arg, out)}

    def encoded_of(arg: Any, key: Any) -> Any:
        return plain(arg) if key in opened else recorder.encode(unboxed(arg, inlined))

    encoded = tuple([encoded_of(arg, place) for place, arg in enumerate(seen)])
    attrs = tuple([(key, encoded_of(arg, key)) for key, arg in named.items()])
    if not _is_same(_spelled_out(op.name, encoded, out), _spelled_out(op.name, op.args, out), numbers):
        raise Mismatch(f"{op.name} of {encoded}, not {op.args}")
    if not _is_same(attrs, op.attrs, numbers):
        raise Mismatch(f"{op.name} of {attrs}, not {op.attrs}")
    bounds.ask(func, opened, out)
    numbered = {key: recorder.number_of(arg) for key, arg in opened.items()}
    encoded = tuple([numbered.get(place, arg) for place, arg in enumerate(encoded)])
    attrs = tuple([(key, numbered.get(key, arg)) for key, arg in attrs])
    _set_types(recorder, place, replace(op, args=encoded, attrs=attrs), facts_of(func).is_pointwise, out)


def _is_open(recorder: Any, op: Op, func: Any, key: int | str, box: Any, out: Any) -> bool:
    """Whether a number may be another one on each call, though a gradient goes through the op."""
    numbers = recorder.rules.numbers
    scalar = numbers.normal(scalar_of(box))
    if not isinstance(scalar, Scalar) or numbers.is_of_sizes(scalar):
        return False
    made = tensors_in(out if type(out) in (tuple, list) else (out,))
    if not op.is_grad_enabled or not any(tensor.requires_grad for tensor in made):
        return True
    row, parameter = row_of(op.name), key if type(key) is str else func._schema.arguments[key].name
    is_float = all(isinstance(type, TensorType) and DTYPES[type.dtype].kind == "f" for type in op.types[:1])
    return row is not None and parameter in row.numbers and is_float and all(
        numbers.holds(apply(test, scalar, bound)) for name, test, bound in row.tests if name == parameter)


def _set_types(recorder: Any, place: int, op: Op, is_pointwise: bool, out: Any) -> None:
    """Puts `op` at `place`, with the types of what it gives for all sizes: now, that is `out`."""
    builder = recorder.builder
    made = list(tensors_in(out if type(out) in (tuple, list) else (out,)))
    known = {recorder.value_of(tensor): type_of(tensor) for tensor in made}
    found = recorder.rules.types(
        Op(op.name, op.args, (), (), op.attrs), builder.type_of.__getitem__, list(known.values()), is_pointwise)
    by_value = dict(zip(known, found))
    if holds_scalar(op.args) or holds_scalar(op.attrs):
        recorder.is_fixed_no_longer(op.results)
    own = {result for result, alias in zip(op.results, op.aliases) if alias != result}
    for value, made_type in by_value.items():
        if value in own:
            builder.type_of[value] = made_type
    builder.ops[place] = replace(
        op, types=tuple([builder.type_of.get(r, t) for r, t in zip(op.results, op.types)]))
    for written in op.writes:
        recorder.pin_relatives(written, op.refs())


def _spelled_out(name: str, args: tuple, out: Any) -> tuple:
    """The arguments with what -1 stands for, where that is a size: it may be said or not."""
    if name not in _TO_SIZES:
        return args
    return args[0], tuple([m if type(n) is int and n == -1 else n for n, m in zip(args[1], out.shape)])


def _is_same(found: Any, noted: Any, numbers: Any) -> bool:
    """Whether an argument is that of the op that was noted, in this call."""
    if isinstance(found, tuple):
        return isinstance(noted, tuple) and len(found) == len(noted) and all(
            _is_same(a, b, numbers) for a, b in zip(found, noted))
    found, noted = (numbers.value(n) if isinstance(n, Scalar) else n for n in (found, noted))
    return type(found) is type(noted) and (found == noted or found != found and noted != noted)


def merged(real: Any, again: Any, unbox: Callable[[Any], Any]) -> Any:
    """What the call gave for real, with the numbers of the one that was made again."""
    if is_box(again):
        return unbox(again)
    if isinstance(real, (tuple, list)) and isinstance(again, (tuple, list)):
        if len(real) != len(again):
            raise Mismatch("another number of results")
        parts = [merged(*pair, unbox) for pair in zip(real, again)]
        if all(part is own for part, own in zip(parts, real)):
            return real
        return type(real)(parts)
    return real
