"""Kernels by hand, and how to run one on tensors."""

import ctypes
import functools

import torch

from preheat.generate.build import build, cpu_target, host_target
from preheat.ir.loop import Axis, Index, Kernel, LoopOp, Param, Stage
from preheat.run.load import load

AVX2 = ("sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "avx", "avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "movbe")
FEATURES = {"x86_64": {"avx2": AVX2, "v1": ()}, "aarch64": {}}


def targets() -> dict:
    """The running CPU, and lesser ones of the same architecture that it can run code for."""
    host = host_target()
    lesser = {name: cpu_target(host.arch, f) for name, f in FEATURES[host.arch].items()}
    return {"host": host, **{n: t for n, t in lesser.items() if set(t.features) <= set(host.features)}}


@functools.lru_cache(maxsize=512)
def _function(kernel: Kernel, target):
    code = load(build((kernel,), target))
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(code.address(kernel.name))
    return code, call


def run(kernel: Kernel, tensors, target=None, ranges=None) -> int:
    """Runs `kernel` on the first elements of `tensors` over `ranges` (all of it); the error flag."""
    _, call = _function(kernel, target or host_target())
    flag = ctypes.c_int32(0)
    addresses = [t.data_ptr() for t in tensors] + [ctypes.addressof(flag)]
    arguments = (ctypes.c_void_p * len(addresses))(*addresses)
    extent = 1
    for axis in kernel.axes[:kernel.parallel]:
        extent *= axis.extent
    for begin, end in ranges or [(0, extent)]:
        call(arguments, begin, end)
    return flag.value


def pointwise(name: str, count: int, dtypes, result: str, *ops: LoopOp) -> Kernel:
    """A flat kernel in lane form: operands loaded as v0, v1 ..., then `ops`; the last is stored."""
    at = Index(0, (("i0", 1),))
    loads = tuple(LoopOp("load", k, d, param=k, index=at) for k, d in enumerate(dtypes))
    store = LoopOp("store", -1, result, (ops[-1].id if ops else 0,), param=len(dtypes), index=at)
    params = (*(Param(d, "in") for d in dtypes), Param(result, "out"))
    return Kernel(name, params, (Axis("i0", count),), (Stage((), (*loads, *ops, store)),), 1, "i0")


def apply(op: str, tensors, result: torch.dtype, target=None, **fields) -> torch.Tensor:
    """One elementwise op by a generated kernel; raises if it sets the error flag."""
    dtypes = [str(t.dtype).removeprefix("torch.") for t in tensors]
    name = str(result).removeprefix("torch.")
    n = len(tensors)
    out = torch.empty(tensors[0].shape, dtype=result)
    kernel = pointwise("k", out.numel(), dtypes, name, LoopOp(op, n, name, tuple(range(n)), **fields))
    assert run(kernel, [*tensors, out], target) == 0
    return out
