"""Draws: what ops that draw random numbers become where the numbers are to be generated.

    aten.bernoulli_.float(%1, 0.9)      ->      %2 = aten.randint.low(-2**63, 2**63 - 1, ())
                                                %3 = preheat.uniform(%2, %1, 0)
                                                %4 = aten.lt.Scalar(%3, 0.9)
                                                aten.copy_(%1, %4)

Each op draws one seed from torch's generator, in program order, wherever a graph begins or ends; all
else follows from it (`bridge/uniform.py`). They become so while they are recorded, and run so: the
first call has the numbers that a compiled one would have. Float32 and 16-bit floats on CPUs and GPUs
from torch's own generators are covered; all else draws as in eager.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from preheat.bridge.ops import overload

LEAST_SEED, MOST_SEED = -(2**63), 2**63 - 1
# Of 16-bit floats eager draws as many bits as their fraction holds.
_FRACTION_BITS = {torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}

Tensor = torch.Tensor


def generated(func: Any, args: tuple, kwargs: dict) -> Callable[[], Any] | None:
    """What does the call of the overload `func` by generated numbers; None if that is eager's."""
    made = _DRAWS.get(func)
    if made is None or kwargs.get("generator") is not None:
        return None
    return made(func, *args, **kwargs)


class Generating(TorchDispatchMode):
    """Within it, what would become generated numbers while it is recorded does so unrecorded."""


def _dispatch(mode: Generating, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
    draw = generated(func, args, kwargs or {})
    return func(*args, **(kwargs or {})) if draw is None else draw()


Generating.__torch_dispatch__ = _dispatch  # not in the class body: see `capture/recorder.py`


def _seed(like: Tensor) -> Tensor:
    return torch.ops.aten.randint.low(
        LEAST_SEED, MOST_SEED, (), dtype=torch.int64, device=like.device)


def _uniform(like: Tensor, seed: Tensor | None = None, stream: int = 0) -> Tensor:
    """float32 in [0, 1) in the sizes of `like`."""
    seed = _seed(like) if seed is None else seed
    like = torch.empty_like(like) if like.requires_grad else like
    return overload("preheat.uniform.default")(seed, like, stream)


def _flat(target: Tensor) -> Tensor:
    """Numbers in [0, 1) that `target` can hold without rounding to 1."""
    bits, found = _FRACTION_BITS[target.dtype], _uniform(target)
    return found if bits == 24 else torch.floor(found * 2.0**bits) * 2.0**-bits


def _normal(target: Tensor) -> Tensor:
    """Normal numbers of mean 0 and deviation 1 (Box and Muller), float32."""
    seed = _seed(target)
    radius = torch.sqrt(torch.log1p(-_uniform(target, seed, 0)) * -2.0)
    return radius * torch.cos(_uniform(target, seed, 1) * (2.0 * math.pi))


def _is_covered(target: Tensor) -> bool:
    return target.dtype in _FRACTION_BITS and _is_there(target)


def _is_there(target: Tensor) -> bool:
    return target.layout is torch.strided and target.device.type in ("cpu", "cuda")


# ---------------------------------------------------------------------------- one kind of op each
def _made_by(factory: Any, numbers: Callable[[Tensor], Tensor]) -> Callable:
    """rand, randn: `factory` makes the memory."""
    def draw(func: Any, *args: Any, **kwargs: Any) -> Callable[[], Tensor] | None:
        dtype = kwargs.get("dtype") or torch.get_default_dtype()
        device = kwargs.get("device")
        is_here = device is None or torch.device(device).type in ("cpu", "cuda")
        is_plain = kwargs.get("layout") in (None, torch.strided)
        if dtype not in _FRACTION_BITS or not is_here or not is_plain:
            return None

        def run() -> Tensor:
            target = factory(*args, **kwargs)
            return target.copy_(numbers(target))

        return run

    return draw


def _made_like(numbers: Callable[[Tensor], Tensor]) -> Callable:
    """rand_like, randn_like."""
    def draw(func: Any, self: Tensor, **kwargs: Any) -> Callable[[], Tensor] | None:
        dtype = kwargs.get("dtype") or self.dtype
        is_plain = kwargs.get("layout") in (None, torch.strided)
        is_here = kwargs.get("device") in (None, self.device)
        if dtype not in _FRACTION_BITS or not is_here or not is_plain or not _is_there(self):
            return None

        def run() -> Tensor:
            target = torch.empty_like(self, **kwargs)
            return target.copy_(numbers(target))

        return run

    return draw


def _bernoulli(func: Any, self: Tensor, p: Any = 0.5, generator: None = None) -> Callable | None:
    """0 and 1. (A number that is the default of an op does not arrive with it.)"""
    if not _is_covered(self) or not (isinstance(p, Tensor) or 0 <= p <= 1):
        return None  # eager refuses such a p

    def run() -> Tensor:
        target = self if func._schema.is_mutable else torch.empty_like(self)
        return target.copy_(_uniform(target) < p)

    return run


def _bernoulli_of(func: Any, self: Tensor, generator: None = None) -> Callable | None:
    """0 and 1, by the probabilities in `self`."""
    return _bernoulli(func, self, self)


def _uniform_(
    func: Any, self: Tensor, low: float = 0.0, high: float = 1.0, generator: None = None,
) -> Callable | None:
    if not _is_covered(self) or not low <= high or not math.isfinite(high - low):
        return None
    return lambda: self.copy_(_flat(self) * (high - low) + low)


def _normal_(
    func: Any, self: Tensor, mean: float = 0.0, std: float = 1.0, generator: None = None,
) -> Callable | None:
    if not _is_covered(self) or not std >= 0:
        return None
    return lambda: self.copy_(_normal(self) * std + mean)


def _native_dropout(func: Any, input: Tensor, p: float, train: bool | None) -> Callable | None:
    """One op leads from the input to the result, for autograd."""
    if not _is_covered(input) or train is False or not 0 <= p <= 1:
        return None

    def run() -> tuple[Tensor, Tensor]:
        like = torch.empty_like(input)
        mask = _uniform(like) < 1 - p
        scale = 0.0 if p == 1 else 1 / (1 - p)
        return torch.ops.aten.native_dropout_backward.default(input, mask, scale), mask

    return run


_aten = torch.ops.aten
_DRAWS: dict[Any, Callable] = {
    _aten.rand.default: _made_by(_aten.empty.memory_format, _flat),
    _aten.randn.default: _made_by(_aten.empty.memory_format, _normal),
    _aten.rand_like.default: _made_like(_flat),
    _aten.randn_like.default: _made_like(_normal),
    _aten.bernoulli.p: _bernoulli, _aten.bernoulli_.float: _bernoulli,
    _aten.bernoulli.default: _bernoulli_of, _aten.bernoulli_.Tensor: _bernoulli,
    _aten.uniform_.default: _uniform_, _aten.normal_.default: _normal_,
    _aten.native_dropout.default: _native_dropout,
}
