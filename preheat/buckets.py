"""Buckets: inputs padded to a few lengths, each compiled for itself; results cut back.

    buckets = {"seq": {"lengths": [64, 128], "dims": {"input_ids": 1, "attention_mask": 1},
                       "fill": {"attention_mask": 0}}}
    model = preheat.compile(model, options={"buckets": buckets})
    model(input_ids=ids, attention_mask=mask)      T = 50: runs at 64, gives results of length 50

A program may be run so only if what stands in the padding never reaches the rest of its results: the
program masks it (`attention_mask`), or no op mixes positions. That is checked, not believed: the first
call of each bucket also runs as it is, with the padding, and with other elements in it; where results
differ, or gradients, UserError says so. It is tried, too, at the shortest and the longest that the bucket takes:
a length beyond those at which the padding was found to be without effect is checked when it comes. What is longer
than the last bucket, and what has no length, runs with sizes that change, reported. Of several names each call is
padded along all.
"""

import bisect
import contextlib
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from preheat.base.errors import UserError
from preheat.base.events import emit
from preheat.base.identity import identity
from preheat.base.options import Buckets
from preheat.base.signatures import check_arguments, signature_of
from preheat.bridge import padding
from preheat.bridge.tensors import Tensor, call_facts, without_sizes

Lengths = tuple[int, ...]  # one a name


class Checked(NamedTuple):
    """What is known of one bucket and kind of call.

    axes         the axes of results that are cut, by name; None: at no length so far
    least, most  the padding is without effect from these lengths to those
    ways         the ways through the program that were known then
    """

    axes: list
    least: Lengths
    most: Lengths
    ways: int

    def holds(self, lengths: Lengths, ways: int) -> bool:
        return ways == self.ways and all(
            low <= length <= high for low, length, high in zip(self.least, lengths, self.most))

    def with_axes(self, axes: list, lengths: Lengths) -> "Checked | None":
        """The same up to `lengths`, at which results are cut along `axes`; None where they are other results."""
        pairs = [*zip(self.axes, axes)]
        if not all(old is None or new is None or old == new for old, new in pairs):
            return None
        joined = [old if new is None else new for old, new in pairs]
        return Checked(
            joined, tuple(map(min, self.least, lengths)), tuple(map(max, self.most, lengths)), self.ways)


class Bucketed:
    """Called like `target`. Made by `preheat.compile` and `preheat.bucketed`.

    settings    how it was asked to be compiled; in its options the buckets by name
    by_lengths  `target` compiled once for each combination of lengths, which never change there;
                other sizes, as that of the batch, become symbols as anywhere
    dynamic     the same for longer inputs, whose sizes are symbols
    """

    def __init__(
        self, target: Callable, settings: Mapping[str, Any], by_lengths: Mapping[Lengths, Any],
        dynamic: Any,
    ):
        self.target, self.by_lengths, self.dynamic = target, by_lengths, dynamic
        self.settings, buckets = dict(settings), settings["options"]["buckets"]
        self.names, self.buckets = tuple(buckets), tuple(buckets.values())
        self._signature = signature_of(target)
        self._checks: dict[tuple, Checked] = {}  # by bucket and kind of call
        for own in self.buckets:
            check_arguments(self._signature, own.dims)

    @property
    def parts(self) -> tuple[Any, ...]:
        """What holds the variants."""
        return *self.by_lengths.values(), self.dynamic

    @property
    def name(self) -> str:
        return self.dynamic.name

    def reset(self) -> None:
        self._checks.clear()
        for part in self.parts:
            part.reset()

    def tell_all(self) -> None:
        for part in self.parts:
            part.tell_all()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError:
            return self.dynamic(*args, **kwargs)  # raises the program's own
        lengths = tuple(self._length(own, bound.arguments) for own in self.buckets)
        chosen = tuple(map(_bucket, self.buckets, lengths))
        if None in chosen:
            place = chosen.index(None)
            length, last = lengths[place], self.buckets[place].lengths[-1]
            emit("fallback", what=self.name, why=f"{self.names[place]} {length} is " + (
                f"beyond the last bucket, {last}: its sizes are symbols" if length else
                "nothing that could be padded: it runs as it is"))
            return self.dynamic(*args, **kwargs)
        if lengths == chosen:
            return self.by_lengths[chosen](*bound.args, **bound.kwargs)
        part, key = self.by_lengths[chosen], (chosen, self._kind(bound))
        known = self._checks.get(key)
        is_new = known is None or not known.holds(lengths, part.ways)
        if is_new:
            known = self._found(known, bound, lengths, chosen, part.ways)
        result = self._run(part, bound, chosen)
        if known.ways != part.ways and not is_new:  # it went a way of its own
            known = self._found(None, bound, lengths, chosen, part.ways)
        self._checks[key] = known._replace(ways=part.ways)
        return self._cut(result, known.axes, lengths)

    def _kind(self, bound: inspect.BoundArguments) -> tuple:
        """What may tell one way through the program from another: modes, and the arguments but for sizes
        and elements."""
        plain = tuple(
            value for value in bound.arguments.values() if type(value) in (bool, int, float, str))
        return (padding.is_grad_on(), getattr(self.target, "training", None), plain,
                without_sizes(tuple(call_facts((bound.args, bound.kwargs)))))

    def examples(self, args: tuple, kwargs: dict) -> Iterator[tuple[tuple, dict]]:
        """The call at every bucket, and just below it, where it is padded."""
        bound = self._signature.bind(*args, **kwargs)
        for chosen in itertools.product(*(own.lengths for own in self.buckets)):
            for lengths in dict.fromkeys((self._ends(chosen)[0], chosen)):
                made = self._resized(bound, lengths)
                yield made.args, made.kwargs

    # ------------------------------------------------------------------ lengths
    def _length(self, own: Buckets, given: Mapping[str, Any]) -> int:
        """The one length of the arguments that are padded. Raises UserError if they differ, if there is
        none, or for an axis that there is not."""
        found = {}
        for name, axis in own.dims.items():
            value = given.get(name)
            if not isinstance(value, Tensor):
                continue
            if not -value.dim() <= axis < value.dim():
                raise UserError(
                    f"{self.name}: there is no axis {axis} of {name}, which is {list(value.shape)}")
            found[name] = value.shape[axis]
        if not found:
            raise UserError(f"{self.name}: none of the arguments {', '.join(own.dims)}, which are padded, "
                            f"is a tensor in this call: call what is not compiled")
        if len(set(found.values())) != 1:
            raise UserError(f"{self.name}: the arguments {', '.join(own.dims)} need one length, not {found}")
        return next(iter(found.values()))

    def _resized(
        self, bound: inspect.BoundArguments, lengths: Lengths, is_random: bool = False,
    ) -> inspect.BoundArguments:
        """The arguments at `lengths`. Random: what has no fill value is padded with anything."""
        made = inspect.BoundArguments(self._signature, dict(bound.arguments))
        for own, length in zip(self.buckets, lengths):
            for name, axis in own.dims.items():
                value = made.arguments.get(name)
                if isinstance(value, Tensor) and value.shape[axis] != length:
                    fill = own.fill.get(name, None if is_random else 0)
                    made.arguments[name] = padding.resized(value, axis, length, fill)
        return made

    def _run(
        self, function: Callable, bound: inspect.BoundArguments, lengths: Lengths,
        is_random: bool = False,
    ) -> Any:
        longer = self._resized(bound, lengths, is_random)
        try:
            return function(*longer.args, **longer.kwargs)
        except Exception as error:
            error.add_note(f"{self.name} was called with arguments that buckets have padded to {lengths}")
            raise

    def _cut(self, result: Any, axes: Sequence, lengths: Lengths) -> Any:
        for own, length in zip(axes, lengths):
            result = padding.cut(result, own, length) if own is not None else result
        return result

    # ------------------------------------------------------------------ the check
    def _found(
        self, known: Checked | None, bound: inspect.BoundArguments, lengths: Lengths, chosen: Lengths, ways: int,
    ) -> Checked:
        """What this call shows, and what was known before of the same ways. Raises UserError where padding has an
        effect, at these lengths or with other elements; what would be so at others is for a call of such lengths."""
        axes = self._checked(bound, lengths, chosen)
        if known is not None and known.ways == ways and (wider := known.with_axes(axes, lengths)):
            return wider
        for sign, which in ((-1, "below"), (1, "above")):
            if other := self._beyond_fills(bound, sign):
                try:
                    self._checked(other, lengths, chosen, f", with elements {which} the fill value,")
                except UserError:
                    raise
                except Exception:  # noqa: BLE001 - the program does not take such elements
                    continue
        found = Checked(axes, lengths, lengths, ways)
        for tried in self._ends(chosen):
            if not found.holds(tried, ways):
                with contextlib.suppress(Exception):  # else a call of such lengths is for the check to refuse, or for the program
                    axes = self._checked(self._resized(bound, tried, is_random=True), tried, chosen)
                    found = found.with_axes(axes, tried) or found
        return found

    def _ends(self, chosen: Lengths) -> tuple[Lengths, Lengths]:
        """The shortest and the longest lengths that these buckets pad."""
        shortest = tuple(
            max([0, *(n for n in own.lengths if n < bucket)]) + 1 for own, bucket in zip(self.buckets, chosen))
        return shortest, tuple(max(low, bucket - 1) for low, bucket in zip(shortest, chosen))

    def _beyond_fills(self, bound: inspect.BoundArguments, sign: int) -> inspect.BoundArguments | None:
        """The arguments with random elements, all of them on one side of the fill value of each; None where no argument
        can have such: a mask has its own elements."""
        made = inspect.BoundArguments(self._signature, dict(bound.arguments))
        others = {
            name: other for own in self.buckets for name, value in own.fill.items()
            if name in own.dims and isinstance(given := bound.arguments.get(name), Tensor)
            and (other := padding.beyond(given, value, sign)) is not None}
        made.arguments.update(others)
        return made if others else None

    def _checked(
        self, bound: inspect.BoundArguments, lengths: Lengths, chosen: Lengths, what_for: str = "",
    ) -> list:
        """The axes of the results that are cut, if the padding is without effect on the rest.

        Raises UserError if it is not. Buffers, arguments and random state are left as they were.
        """
        state = padding.state_of(self.target, (bound.args, bound.kwargs))
        draws = padding.draw_state()
        try:
            alone = self.target(*bound.args, **bound.kwargs)
            self._refuse_writes(bound, padding.written(state))
            if not padding.is_same_state(padding.draw_state(), draws):
                raise UserError(
                    f"{self.name} draws random numbers: padding would draw some, too, and what is not "
                    f"padded would get others than in eager. Buckets are for programs that draw none "
                    f"(dropout in model.eval(), or with p=0)")
            expected = padding.grads_of(alone)
            axes, zeros = [], None
            for place, (length, bucket) in enumerate(zip(lengths, chosen)):
                if length == bucket:
                    axes.append(None)
                    continue
                longer = (*lengths[:place], bucket, *lengths[place + 1:])
                padding.put_back(state)
                made = self._run(self.target, bound, longer)
                axes.append(padding.grown(alone, made, length, bucket, f"{self.name}: the result"))
                zeros = made if longer == chosen else zeros
            where = ", ".join(
                f"{name} {length} of {bucket}" for name, length, bucket in zip(
                    self.names, lengths, chosen)) + what_for
            for is_random, what in ((False, "the padding"), (True, "what stands in the padding")):
                if zeros is None or is_random:
                    padding.put_back(state)
                    zeros = self._run(self.target, bound, chosen, is_random)
                made = self._cut(zeros, axes, lengths)
                self._refuse(padding.largest_difference(made, alone), padding.tolerance(alone),
                             f"{what} reaches the results", where)
                found = padding.grads_of(made)
                self._refuse(
                    padding.largest_difference(found, expected), padding.tolerance(expected),
                    f"{what} reaches the gradients", where)
        finally:
            padding.put_back(state)
            padding.set_draw_state(draws)
        return axes

    def _refuse_writes(self, bound: inspect.BoundArguments, written: frozenset[int]) -> None:
        """What is padded is a copy: the caller would not see what is written to it."""
        for own in self.buckets:
            for name in own.dims:
                if identity(bound.arguments.get(name)) in written:
                    raise UserError(
                        f"{self.name} writes to its argument {name!r}, which is padded: the caller would "
                        f"not see it. Write to a clone, or do not use buckets for this program")

    def _refuse(self, error: float, tolerance: float, what: str, where: str) -> None:
        if error > tolerance:
            fills = {name: value for own in self.buckets for name, value in own.fill.items()}
            hint = ("Give fill values that change nothing whatever the elements are (0 for a sum, minus infinity for a "
                    "maximum, False for a mask)") if fills else (
                    "Give a mask that hides it and its fill value ({'attention_mask': 0})")
            raise UserError(
                f"{self.name}: {what}: at {where} they differ by {error:.2g} from those of the run "
                f"that is not padded (fill {fills or 'none'}). {hint}, or do not use buckets for this program")


def _bucket(own: Buckets, length: int) -> int | None:
    """The next bucket for `length`; None beyond the last, and where there is nothing to pad."""
    place = bisect.bisect_left(own.lengths, length)
    if not length:
        return None
    return own.lengths[place] if place < len(own.lengths) else None
