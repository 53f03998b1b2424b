"""Buckets: inputs padded to a few lengths, each with a static variant; results cut back.

    model = preheat.bucketed(model, lengths=[64, 128, 256], dims={"input_ids": 1, "attention_mask": 1})
    model(input_ids=ids, attention_mask=mask)      T = 50: runs at 64, gives results of length 50

A program may be run so only if what stands in the padding never reaches the rest of its results: the
program masks it (`attention_mask`), or no op mixes positions. That is checked, not believed: the first
call of each bucket also runs as it is, and with other values in the padding; where the results differ,
UserError says so. What is longer than the last bucket runs with sizes that change, reported.
"""

import bisect
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from preheat.base.errors import UserError
from preheat.base.events import emit
from preheat.bridge.padding import cut, grown, largest_difference, padded, tolerance
from preheat.bridge.tensors import Tensor


class Bucketed:
    """Called like `target`. Made by `preheat.bucketed`.

    lengths     ascending;  dims: the axis of each argument, by name, that is padded
    fill        what stands behind each of them, 0 by default
    static      `target` compiled with a variant for each bucket;  dynamic: for longer inputs
    """

    def __init__(
        self, target: Callable, lengths: Sequence[int], dims: Mapping[str, int],
        fill: Mapping[str, Any], static: Callable, dynamic: Callable,
    ):
        self.target, self.lengths = target, tuple(sorted(lengths))
        self.dims, self.fill = dict(dims), dict(fill)
        self.static, self.dynamic = static, dynamic
        self._signature = inspect.signature(getattr(target, "forward", target))
        self._axes: dict[int, Any] = {}  # of results, by bucket

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        bound = self._signature.bind(*args, **kwargs)
        given = bound.arguments
        length = self._length(given)
        place = bisect.bisect_left(self.lengths, length)
        if place == len(self.lengths):
            emit("fallback", what="a bucketed function",
                 why=f"length {length} is beyond the last bucket, {self.lengths[-1]}")
            return self.dynamic(*args, **kwargs)
        bucket = self.lengths[place]
        if length == bucket:
            return self.static(*bound.args, **bound.kwargs)
        if bucket not in self._axes:
            self._check(bound, length, bucket)
        result = self._run(self.static, bound, bucket, self.fill)
        return cut(result, self._axes[bucket], length)

    def _length(self, given: Mapping[str, Any]) -> int:
        """The one length of the arguments that are padded. Raises UserError if they differ."""
        found = {
            name: given[name].shape[axis] for name, axis in self.dims.items()
            if isinstance(given.get(name), Tensor)
        }
        if len(set(found.values())) != 1:
            raise UserError(f"the arguments {', '.join(self.dims)} need one length, not {found}")
        return next(iter(found.values()))

    def _run(
        self, function: Callable, bound: inspect.BoundArguments, bucket: int, fill: Mapping[str, Any],
    ) -> Any:
        """What `function` gives for arguments padded to `bucket`."""
        longer = inspect.BoundArguments(self._signature, dict(bound.arguments))
        for name, axis in self.dims.items():
            value = bound.arguments.get(name)
            if isinstance(value, Tensor):
                longer.arguments[name] = padded(value, axis, bucket, fill.get(name, 0))
        return function(*longer.args, **longer.kwargs)

    def _check(self, bound: inspect.BoundArguments, length: int, bucket: int) -> None:
        """Whether the padding is without effect on the rest of the results. Raises UserError."""
        alone = self.target(*bound.args, **bound.kwargs)
        with_fill = self._run(self.target, bound, bucket, self.fill)
        axes = grown(alone, with_fill)
        others = {
            name: _another(self.fill.get(name, 0)) for name in self.dims if name not in self.fill}
        with_others = self._run(self.target, bound, bucket, {**self.fill, **others})
        for result, what in ((with_fill, "the padding"), (with_others, "what stands in the padding")):
            error = largest_difference(cut(result, axes, length), alone)
            if error > tolerance(alone):
                raise UserError(
                    f"{what} reaches the results: at length {length} of {bucket} they differ by "
                    f"{error:.2g} from those without. Give a mask that hides it and its fill value "
                    f"(fill={{'attention_mask': 0}}), or do not use buckets for this program")
        self._axes[bucket] = axes


def _another(value: Any) -> Any:
    """A value of the same type."""
    return not value if type(value) is bool else value + 1
