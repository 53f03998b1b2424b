"""RMS norm as torch makes it of ops, for C code that takes no symbolic sizes.

    rms_norm(x, (8,), weight, 1e-5)    aten.pow, aten.mean, aten.add_, aten.rsqrt, aten.mul, aten.mul

Source: `rms_norm_composite` of ATen/native/layer_norm.cpp. A GPU has one op for it.
"""

import struct
from typing import Any

import torch

from preheat.bridge.ops import overload, private

_add = overload("aten.add_.Scalar")
_fused = private("ops.aten._fused_rms_norm.default")


def spelled_norm(function: Any) -> Any:
    """What does the same as `function`, if that is torch's RMS norm; else None."""
    return rms_norm if type(function) is _KIND and function is torch.rms_norm else None


def rms_norm(input: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    """input: [.., *normalized_shape], weight: [*normalized_shape], eps: that of the type it is computed in."""
    if input.device.type == "cuda":
        return _fused(input, normalized_shape, weight, eps)[0]
    is_half = input.dtype in (torch.float16, torch.bfloat16)
    x = input.to(torch.float32) if is_half else input
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    if x.dtype is not torch.float64:
        (eps,) = struct.unpack("f", struct.pack("f", eps))
    axes = [x.dim() - k - 1 for k in range(len(normalized_shape))]
    made = x.mul(_add(x.pow(2).mean(axes, True), eps).rsqrt())
    made = made if weight is None else made.mul(weight)
    return (made.type_as(input) if is_half else made).contiguous()


_KIND = type(torch.rms_norm)
