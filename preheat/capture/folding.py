"""Composites of which C asks more of sizes than follows for the result, made of their ops.

    x @ w, x: f32[n3, n4, 8]     ->  aten.view(x, (n3*n4, 8)), aten.mm, aten._unsafe_view((n3, n4, 5))
    a @ b, both of four axes     ->  aten.expand, view or copy, of each; aten.bmm; aten._unsafe_view

C folds the axes of the larger operand of a product into rows, or makes a batch of both. Torch 2.11 looks at
plain sizes meanwhile, which pins them, and newer ones ask more of symbolic sizes than follows for the result.
The functions here do the same with tensors as C sees them (`bridge/symint.Shown`), wherever the composite
comes from: from the program, or from other C code, as attention does. They only ever say what the ops of a
call that has really run are made of (`rehearsal.py`): where they would do anything else than C has done, the
sizes are pinned.

Source: `should_fold` and `_matmul_impl` of ATen/native/LinearAlgebra.cpp, `linear` of ATen/native/Linear.cpp.
Both take a tensor for a subclass while a dispatch mode listens, as ours does.
"""

from collections.abc import Callable, Sequence
from typing import Any

from preheat.bridge.composed import divide, plus, pool, times, unsafe_view
from preheat.bridge.composites import rms_norm
from preheat.bridge.symint import Shown, box, reshaped_copy
from preheat.bridge.tensors import type_of
from preheat.capture.numbers import Numbers
from preheat.capture.size_call import Call, broadcast, is_channels_last
from preheat.capture.size_views import can_view
from preheat.ir.dims import normal
from preheat.ir.scalar import Dim, Scalar, product
from preheat.ir.types import TensorType

_NONE, _MEAN = 0, 1  # of at::Reduction


def spelled(name: str, args: tuple, numbers: Numbers) -> Any:
    """What the composite of this name gives; NotImplemented where C is to compose it."""
    made = _COMPOSITES.get(name)
    return NotImplemented if made is None else made(Call("", {}, {}, (), numbers), *args)


def _linear(call: Call, x: Any, weight: Any, bias: Any = None) -> Any:
    """x: [..., K], weight: [N, K] or [K], bias: [N]."""
    if bias is not None and (x.dim() == 2 or x.is_contiguous()):
        return NotImplemented  # C folds it, whatever the sizes
    made = x.matmul(weight.t())
    return made if bias is None else made.add(bias)


def _matmul(call: Call, a: Any, b: Any) -> Any:
    """a: [..., M, K] or [K], b: [..., K, N] or [K]; broadcast over what is before."""
    if a.dim() <= 2 and b.dim() <= 2:
        return NotImplemented
    is_first_larger = a.dim() >= b.dim()
    larger, smaller = (a, b) if is_first_larger else (b.mT, a)
    if larger.dim() >= 3 and smaller.dim() <= 2 and (
            smaller.requires_grad or a.dim() != 2 and _is_folded(call, _type(larger))):
        return _folded(call, a, b, is_first_larger)
    if a.dim() == 3 and b.dim() == 3 and not call.equal(_type(a).sizes[0], _type(b).sizes[0]):
        if call.is_one(_type(a).sizes[0]):
            return a.squeeze(0).matmul(b)
        return a.matmul(b.squeeze(0))
    return _batched(call, a, b)


def _cross_entropy(
    call: Call, scores: Any, target: Any, weight: Any = None, reduction: int = _MEAN, ignored: int = -100,
    smoothing: float = 0.0,
) -> Any:
    """scores, target: [C] or [N, C, ..], weight: [C]. Only of targets that are probabilities: for their mean C counts
    in plain sizes."""
    sizes, wanted = _type(scores).sizes, _type(target).sizes
    if len(sizes) != len(wanted) or not all(map(call.equal, sizes, wanted)):
        return NotImplemented
    axis = min(1, len(sizes) - 1)
    logs = scores.log_softmax(axis, scores.dtype)
    if smoothing > 0:
        target = plus(times(target, 1 - smoothing), smoothing / call.known(sizes[axis]))
    if weight is not None:
        weight = weight.view([-1 if k == axis else 1 for k in range(len(sizes))])
    parts = logs * target if weight is None else logs * target * weight
    if reduction == _NONE:
        return -parts.sum(axis)
    rows = normal(product(sizes[:axis] + sizes[axis + 1:]))
    return divide(-parts.sum(), *_boxes(call, (rows,))) if reduction == _MEAN else -parts.sum()


def _max_pool1d(
    call: Call, x: Any, kernel: list, stride: list = (), padding: list = (0,), dilation: list = (1,), is_ceil: bool = False,
) -> Any:
    """x: [N, C, L] or [C, L], as an image of one row."""
    stride = stride or kernel
    pairs = [(one, *given) for one, given in ((1, kernel), (1, stride), (0, padding), (1, dilation))]
    made, places = pool(x.unsqueeze(-2), *pairs, is_ceil)
    made = made.squeeze(-2)
    places.squeeze(-2)
    return made


def _mean_of_image(call: Call, x: Any, size: list) -> Any:
    """x: [.., H, W] or [.., D, H, W] to one number a channel, which are laid out as the image is; any other size is an op of its own."""
    if any(type(n) is not int or n != 1 for n in size):
        return NotImplemented
    count = len(size)
    made, given = x.mean([-1 - k for k in range(count)], True), _type(x)
    if not is_channels_last(call, given):
        return made
    batch, channels = _boxes(call, given.sizes[:2])
    return made.as_strided((batch, channels, *[1] * count), (channels, 1, *[channels] * count))


def _rms_norm(call: Call, *args: Any) -> Any:
    return rms_norm(*args)


def _is_folded(call: Call, type: TensorType) -> bool:
    """Whether all axes but the last are rows without a copy."""
    sizes, strides = type.sizes, type.strides
    return 0 in sizes or all(
        call.equal(strides[k], normal(strides[k + 1] * sizes[k + 1])) for k in range(type.rank - 2))


def _folded(call: Call, a: Any, b: Any, is_first_larger: bool) -> Any:
    """One product of matrices, or of a matrix and a vector."""
    rows, other = (a, b) if is_first_larger else (b.mT, a.t() if a.dim() == 2 else a)
    sizes = _type(rows).sizes
    flat = _reshaped(call, rows, (normal(product(sizes[:-1])), sizes[-1]))
    if other.dim() == 1:
        return unsafe_view(flat.mv(other), _boxes(call, sizes[:-1]))
    made = unsafe_view(flat.mm(other), _boxes(call, (*sizes[:-1], _type(other).sizes[1])))
    return made if is_first_larger else made.mT.contiguous()


def _batched(call: Call, a: Any, b: Any) -> Any:
    """A batch of products, over all axes before the last two."""
    first, second = _type(a).sizes, _type(b).sizes
    batch = broadcast(call, first[:-2], second[:-2])
    count = normal(product(batch))
    rows, columns = first[-2:-1], second[-1:] if b.dim() > 1 else ()

    def flat(tensor: Any, kept: tuple[Dim, ...]) -> Any:
        whole = tensor.expand(_boxes(call, (*batch, *kept)))
        return _reshaped(call, whole, (count, *kept))

    a = flat(a, ((rows or (1,))[0], first[-1]))
    if b.dim() == 1:
        made = a.bmm(flat(b, second).unsqueeze(2)).squeeze(-1)
    else:
        made = a.bmm(flat(b, second[-2:]))
    return unsafe_view(made, _boxes(call, (*batch, *rows, *columns)))


def _reshaped(call: Call, tensor: Any, sizes: tuple[Dim, ...]) -> Any:
    """`reshape`, a view or a copy."""
    boxes = _boxes(call, sizes)
    return tensor.view(boxes) if can_view(call, _type(tensor), sizes) else reshaped_copy(tensor, boxes)


def _type(tensor: Any) -> TensorType:
    return tensor.shown_type if type(tensor) is Shown else type_of(tensor)


def _boxes(call: Call, sizes: Sequence[Dim]) -> tuple:
    numbers = call.numbers
    return tuple([
        box(n, numbers.value(n), numbers) if isinstance(n, Scalar) else n
        for n in map(numbers.normal, sizes)])


_COMPOSITES: dict[str, Callable] = {
    "aten.matmul.default": _matmul, "aten.linear.default": _linear, "aten.rms_norm.default": _rms_norm,
    "aten.adaptive_avg_pool2d.default": _mean_of_image,
    "aten.adaptive_avg_pool3d.default": _mean_of_image,
    "aten.cross_entropy_loss.default": _cross_entropy, "aten.max_pool1d.default": _max_pool1d,
}
