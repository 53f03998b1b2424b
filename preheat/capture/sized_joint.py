"""Sized joints: the backward of a body whose sizes change, recorded once for many sizes.

    nested = SizedNested(division, {"n3": 4}, {0: x, 1: w}, missed)
    grads, joint = nested.backward(0, tangents, is_kept)       a joint whose types have symbols
    nested.taught(joint)                    and what has to hold of sizes, as torch asked for it

As `Nested`, but torch and its formulas are given tensors as C sees them (`bridge/symint.Shown`): each
op runs on the real ones, and its arguments are expressions of sizes. Whatever is asked about sizes on
the way is a condition: the joint is for the sizes that give the same answers. A rule that is missing
pins the sizes that it was asked for, which is a condition too.

Guarantees: gradients are not for use but for comparison, since torch's checks for in-place changes do
not see the inputs.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from preheat.base.errors import Unsupported
from preheat.base.identity import identity
from preheat.bridge.ops import decode, overload
from preheat.bridge.symint import Shown, box, show
from preheat.bridge.tensors import type_of
from preheat.capture.joint import MEANINGS, Nested, no_constant, no_test
from preheat.capture.numbers import Numbers
from preheat.capture.recorder import Recorder
from preheat.capture.sizes import SizeRules, is_symbolic, now
from preheat.ir.dims import normal, substitute
from preheat.ir.graph import Arg, Op
from preheat.ir.scalar import Number, Scalar, apply
from preheat.ir.sized import mapped
from preheat.ir.training import Division, Joint, Taught
from preheat.ir.types import TensorType, contiguous_strides


class SizedNested(Nested):
    """One run of `division`, whose types have symbols, at the sizes `values`.

    missed   counts the ops without a size rule, by name
    """

    def __init__(
        self, division: Division, values: Mapping[str, int], inputs: Mapping[int, Any],
        missed: dict[str, int],
    ):
        self.conditions: dict[tuple[Scalar, bool], None] = {}
        self.numbers = Numbers({}, self._looked, self._tested)
        self._missed, self._types = missed, [given.type for given in division.graph.inputs]
        for name, value in values.items():
            self.numbers.know(name, value)
        super().__init__(division, inputs, writes=False)

    def _looked(self, source: int, value: int) -> None:
        for name in self.numbers.sizes:
            if int(name[1:]) == source:
                self.conditions[apply("eq", self.numbers.sizes[name], int(value)), True] = None

    def _tested(self, scalar: Number, answer: bool) -> None:
        if isinstance(scalar, Scalar):
            self.conditions[scalar, answer] = None

    def taught(self, joint: Joint) -> Taught:
        """What was recorded, with the sizes that it is for."""
        by, forward = self.numbers.same, self.forward
        return mapped(
            Taught(tuple(self.conditions), forward, (joint,)),
            lambda scalar: substitute(scalar, by), but=("conditions",))

    def forget(self) -> None:
        """The run is over: nothing of it is held any longer, though parts of this know each other."""
        for table in (self._locals, self._leaves, self._kept, self.values, self._sources):
            table.clear()

    # ------------------------------------------------------------------ what formulas see
    def _listening(self, outside: Callable, fail: Callable) -> Recorder:
        types, numbers = self._types, self.numbers

        def refuse(reason: str, detail: str) -> None:  # nobody waits for what this run gives
            fail(reason, detail)
            raise Unsupported(reason, detail)

        recorder = Recorder(
            outside, refuse, no_constant, no_test,
            outside_type=lambda place, tensor: types[place])
        recorder.rules = SizeRules(numbers, self._missed)
        recorder.is_boxed = True

        def shown(tensor: torch.Tensor) -> torch.Tensor:
            type = recorder.builder.type_of[recorder.value_of(tensor)]
            return show(tensor, now(type, numbers), numbers) if is_symbolic(type) else tensor

        recorder.show = shown
        return recorder

    def _shown(self, tensor: torch.Tensor, type: TensorType) -> torch.Tensor:
        return show(tensor, now(type, self.numbers), self.numbers) if is_symbolic(type) else tensor

    def _as_result(self, tangent: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
        """The tangent in the sizes of its result, and in strides that follow from them, if any do."""
        place = self._sources[identity(tangent)]
        type = type_of(tangent)
        if type_of_shown(result) is not None:
            sizes = type_of_shown(result).sizes
            type = TensorType(type.dtype, sizes, self._strides(sizes, type, result), type.device)
        self._types += [None] * (place + 1 - len(self._types))
        self._types[place] = type
        return self._shown(tangent, type)

    def _strides(self, sizes: tuple, type: TensorType, result: Shown) -> tuple:
        """Those of the result, or dense in some order of the axes: of a result that is seen turned, the tangent comes
        turned back. Zero strides have no say."""
        kept = [axis for axis, step in enumerate(type.strides) if step != 0]
        turned = sorted(kept, key=lambda axis: -type.strides[axis])
        for order in (kept, turned):
            dense = dict(zip(order, map(normal, contiguous_strides(tuple(sizes[axis] for axis in order)))))
            for strides in (type_of_shown(result).strides, tuple(dense.get(axis, 0) for axis in range(len(sizes)))):
                if tuple(map(self.numbers.value, strides)) == type.strides:
                    return strides
        return type.strides

    def _plain(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.meant if type(tensor) is Shown else tensor

    def _type_of(self, tangent: torch.Tensor) -> TensorType:
        return now(self._types[self._sources[identity(tangent)]], self.numbers)

    def _computed(self, op: Op, operands: dict[int, torch.Tensor]) -> object:
        args = [decode(self._now(arg), operands) for arg in op.args]
        return (MEANINGS.get(op.name) or overload(op.name))(
            *args, **{key: decode(self._now(arg), operands) for key, arg in op.attrs})

    def _now(self, arg: Arg) -> Any:
        return mapped(arg, self.numbers.value)

    def _meanings(self) -> Mapping[str, Callable]:
        return _MEANINGS

    def _decoded(self, arg: Arg, operands: dict[int, Any]) -> Any:
        return decode(self._boxed(arg), operands)

    def _boxed(self, arg: Arg) -> Any:
        if isinstance(arg, tuple):
            return tuple([self._boxed(part) for part in arg])
        if not isinstance(arg, Scalar):
            return arg
        arg = self.numbers.normal(arg)
        return box(arg, self.numbers.value(arg), self.numbers) if isinstance(arg, Scalar) else arg

    def _lay_out(self, op: Op, values: dict[int, torch.Tensor]) -> None:
        made, strides = self._plain(values[op.result]), map(self.numbers.value, op.type.strides)
        if any(a != b for a, b, n in zip(made.stride(), strides, made.shape) if n > 1):
            raise Unsupported("unknown_view", f"{op.name} in a layout of its own")


def _block_diagonal(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """`block_diag`, whose derivative takes no symbols."""
    blocks = [tensor if tensor.dim() == 2 else tensor.view((1, -1)) for tensor in tensors]
    rows = []
    for row, block in enumerate(blocks):  # one tensor may be several blocks
        zeros = [block.new_zeros(block.shape[0], other.shape[1]) for other in blocks]
        rows.append(torch.cat([*zeros[:row], block, *zeros[row + 1:]], 1))
    return torch.cat(rows)


def _windows(x: torch.Tensor, size: Sequence, stride: Sequence, offset: Any = None) -> torch.Tensor:
    """`as_strided` of the windows that `stft` takes of signals [.., L], as what it is: [N, count, length]."""
    is_plain = offset in (None, 0) and len(size) == 3 and x.dim() > 1 and x.is_contiguous()
    if is_plain and type(size[2]) is type(stride[1]) is int and (stride[2], stride[0]) == (1, x.shape[-1]):
        made = x.view(size[0], x.shape[-1]).unfold(1, size[2], stride[1])
        if made.shape[1] == size[1]:
            return made
    return overload("aten.as_strided.default")(x, size, stride, offset)


# Besides those of `joint.py`: ops whose derivative is written for plain sizes.
_MEANINGS: dict[str, Callable] = MEANINGS | {
    "aten.block_diag.default": _block_diagonal, "aten.as_strided.default": _windows,
}


def type_of_shown(tensor: torch.Tensor) -> TensorType | None:
    return tensor.shown_type if type(tensor) is Shown else None
