"""Ambient state: what decides the meaning of a program besides its arguments and memory.

    AMBIENT["grad_enabled"]()  -> False
    ambient_now()              -> (("grad_enabled", False), ("inference_mode", False), ...)
    steps_aside()              -> "a function mode is active", or "" when compiled code may run

Every entry guards every row of `AMBIENT` (`Guard(-1, "ambient", (name, value))`), read before the
recorder's own mode is entered; rows of `WHEN_READ` only where the program asked for them, `ROUNDING` only
where it multiplies float32 on a GPU. Values
are primitives and tuples of them, so they can be stored.
No rows: thread counts (library calls read them anew), and whether warnings repeat.

Rows of `SETTABLE` can be set by a node at its end: SETTABLE["grad_enabled"](True). A program that
leaves another row changed where it meets the outside (a host call, its return) is not compiled
beyond that place.

State that a compiled call can neither guard nor reproduce (a foreign mode that sees every op, a
trace function that sees every line) makes the call plain Python: the rows of `_ASIDE`.
"""

import contextlib
import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext

from preheat.bridge.ops import private
from preheat.bridge.switches import float32_rounding
from preheat.bridge.tensors import is_batched
from preheat.ir.trace import Constant

_C = torch._C


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _autocast(device: str) -> Callable[[], Constant]:
    """(enabled, dtype) of autocast on `device`: a region entered without a dtype takes this one."""

    def read() -> Constant:
        return torch.is_autocast_enabled(device), _dtype_name(torch.get_autocast_dtype(device))

    return read


def is_autocast_on() -> bool:
    """Whether ops that run now, on a device that is compiled for, have their operands cast."""
    return torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")


def no_autocast() -> Callable:
    """A context manager class in which autocast is off on all devices that are compiled for."""
    return private("_C._DisableAutocast") or _without_autocast


@contextlib.contextmanager
def _without_autocast() -> Iterator[None]:
    with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
        yield


def outside_of_transforms(function: Callable[[], Any], tangents: Iterable[Any]) -> Any:
    """What `function()` gives where no transform of torch is under way: if one is, or has made one of the
    `tangents`, in another thread."""
    if _C._functorch.maybe_current_level() is None and not any(t is not None and is_batched(t) for t in tangents):
        return function()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function).result()


def _default_device() -> Constant:
    """The device of new tensors: a function mode's. Modes are looked at; asking would run them."""
    for depth in reversed(range(_C._len_torch_function_stack())):
        mode = _C._get_function_stack_at(depth)
        if type(mode) is DeviceContext:
            return str(mode.device)
    return "cpu"


def _functorch_level() -> Constant:
    level = _C._functorch.maybe_current_level()
    return -1 if level is None else level


def _deterministic() -> Constant:
    """(enabled, only warn, fill uninitialised memory)."""
    return (
        _C._get_deterministic_algorithms(), _C._get_deterministic_algorithms_warn_only(),
        _C._get_deterministic_fill_uninitialized_memory(),
    )


def _attention() -> Constant:
    """Which kernels `scaled_dot_product_attention` may choose: the choice was made at capture."""
    if torch.cuda.is_initialized():
        _settle_attention()
    return (
        _C._get_flash_sdp_enabled(), _C._get_mem_efficient_sdp_enabled(),
        _C._get_math_sdp_enabled(), _C._get_cudnn_sdp_enabled(), *_C._get_sdp_priority_order(),
    )


@functools.cache
def _settle_attention() -> None:
    """torch sets the order of attention's kernels when it first chooses among those of a GPU: it does so now,
    or what the first call of a process has met would never be met again. The tensors have no memory."""
    choose = private("_fused_sdp_choice")
    if choose is not None:
        with contextlib.suppress(RuntimeError), _C._DisableTorchDispatch(), _C.DisableTorchFunction():
            q = torch.empty((1, 1, 0, 8), device="cuda", dtype=torch.float16)
            choose(q, q, q)


def _library_choice() -> Constant:
    """Switches by which composites chose an op at capture."""
    return _C._get_mkldnn_enabled(), _C._get_nnpack_enabled(), _C._get_cudnn_enabled()


def _saved_tensor_hooks() -> Constant:
    return _C._autograd._top_saved_tensors_default_hooks(False) is not None


def _monitoring() -> Constant:
    """Names of the tools that `sys.monitoring` (Python 3.12) calls; () before."""
    monitoring = getattr(sys, "monitoring", None)
    if monitoring is None:
        return ()
    tools = ((monitoring.get_tool(i), i) for i in range(6))
    return tuple(name for name, i in tools if name is not None and monitoring.get_events(i))


def _accelerator() -> Constant:
    """The type of the device that torch takes for the machine's accelerator."""
    device = None if _get_accelerator is None else _get_accelerator()
    return None if device is None else str(device)


_get_accelerator = getattr(_C, "_accelerator_getAccelerator", None)


def _stream_capture() -> Constant:
    """Whether the current CUDA stream is being captured; None where asking is an error."""
    try:
        return _C._cuda_isCurrentStreamCapturing()
    except RuntimeError:  # no driver, or torch without CUDA
        return None


ROUNDING = "float32_rounding"  # the row on which kernels hang that multiply float32 on a GPU
AMBIENT: MappingProxyType[str, Callable[[], Constant]] = MappingProxyType({
    "grad_enabled": torch.is_grad_enabled,
    "inference_mode": torch.is_inference_mode_enabled,
    "autocast_cpu": _autocast("cpu"),
    "autocast_cuda": _autocast("cuda"),
    "autocast_cache": torch.is_autocast_cache_enabled,
    "default_dtype": lambda: _dtype_name(torch.get_default_dtype()),
    "default_device": _default_device,
    "function_modes": _C._len_torch_function_stack,
    "function_overrides": _C._is_torch_function_enabled,
    "dispatch_modes": _C._len_torch_dispatch_stack,
    "functorch_level": _functorch_level,
    "forward_ad_level": lambda: forward_ad._current_level,
    "forward_ad": _C._is_fwd_grad_enabled,
    "anomaly": lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
    "saved_tensor_hooks": _saved_tensor_hooks,
    "jit_tracing": lambda: _C._get_tracing_state() is not None,
    "torch_profiler": _C._autograd._profiler_enabled,
    "deterministic": _deterministic,
    "attention": _attention,
    "library_choice": _library_choice,
    ROUNDING: float32_rounding,
    "trace_function": lambda: sys.gettrace() is not None,
    "profile_function": lambda: sys.getprofile() is not None,
    "monitoring": _monitoring,
    "stream_capture": _stream_capture,
    "matmul_precision": _C._get_float32_matmul_precision,
    "cuda_available": torch.cuda.is_available,
    "cuda_bf16": torch.cuda.is_bf16_supported,
    "accelerator": _accelerator,
})

def autocast_nesting() -> int:
    """How many autocast regions are open in this thread: what closes the last drops cast weights.

    No row of `AMBIENT`, since nothing follows from it but that."""
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


def _set_autocast(device: str) -> Callable[[Constant], None]:
    def write(value: Constant) -> None:
        is_enabled, dtype = value
        torch.set_autocast_enabled(device, is_enabled)
        torch.set_autocast_dtype(device, getattr(torch, dtype))

    return write


def _change_autocast_nesting(count: int) -> None:
    """Opens or closes so many regions."""
    for _ in range(count):
        torch.autocast_increment_nesting()
    for _ in range(-count):
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()


def _set_deterministic(value: Constant) -> None:
    is_enabled, only_warns, is_filled = value
    _C._set_deterministic_algorithms(is_enabled, warn_only=only_warns)
    _C._set_deterministic_fill_uninitialized_memory(is_filled)


def _set_attention(value: Constant) -> None:
    is_flash, is_efficient, is_math, is_cudnn, *order = value
    _C._set_sdp_use_flash(is_flash)
    _C._set_sdp_use_mem_efficient(is_efficient)
    _C._set_sdp_use_math(is_math)
    _C._set_sdp_use_cudnn(is_cudnn)
    _C._set_sdp_priority_order(list(order))


def _set_library_choice(value: Constant) -> None:
    is_mkldnn, is_nnpack, is_cudnn = value
    _C._set_mkldnn_enabled(is_mkldnn)
    _C._set_nnpack_enabled(is_nnpack)
    _C._set_cudnn_enabled(is_cudnn)


# What sets each row that can be set, given its value. "autocast_nesting" takes the change of
# `autocast_nesting()`, after the rows of autocast themselves.
SETTABLE: MappingProxyType[str, Callable[[Constant], None]] = MappingProxyType({
    "grad_enabled": _C._set_grad_enabled,
    "forward_ad": _C._set_fwd_grad_enabled,
    "autocast_cpu": _set_autocast("cpu"),
    "autocast_cuda": _set_autocast("cuda"),
    "autocast_cache": torch.set_autocast_cache_enabled,
    "autocast_nesting": _change_autocast_nesting,
    "default_dtype": lambda name: torch.set_default_dtype(getattr(torch, name)),
    "deterministic": _set_deterministic,
    "attention": _set_attention,
    "library_choice": _set_library_choice,
    "matmul_precision": _C._set_float32_matmul_precision,
})

# Rows that few programs depend on: guarded by those that call this. (Library products read the
# matmul precision anew, kernels hang on `ROUNDING`.)
WHEN_READ: MappingProxyType[Callable, str] = MappingProxyType({
    _C._cuda_isCurrentStreamCapturing: "stream_capture",
    _C._get_float32_matmul_precision: "matmul_precision",
    torch.cuda.is_available: "cuda_available",
    torch.cuda.is_bf16_supported: "cuda_bf16",
    _get_accelerator: "accelerator",
})

# Rows whose state sees or changes every op, line or gradient: name, the ordinary value, the reason.
_ASIDE: tuple[tuple[str, Constant, str], ...] = (
    ("trace_function", False, "a trace function (debugger, coverage) watches every line"),
    ("profile_function", False, "a profile function watches every call"),
    ("monitoring", (), "a tool of sys.monitoring watches the code"),
    ("torch_profiler", False, "the torch profiler records every op"),
    ("function_modes", 0, "a torch function mode (default device included) is active"),
    ("function_overrides", True, "torch function overrides are disabled"),
    ("dispatch_modes", 0, "a foreign dispatch mode is active"),
    ("functorch_level", -1, "the call is inside a torch.func transform"),
    ("forward_ad_level", -1, "forward-mode AD is active"),
    ("saved_tensor_hooks", False, "saved-tensor hooks are active"),
    ("jit_tracing", False, "torch.jit.trace is running"),
    ("anomaly", (False, True), "anomaly detection is on"),
)


def ambient_now() -> tuple[tuple[str, Constant], ...]:
    """The name and present value of every row that every entry guards."""
    asked = frozenset(WHEN_READ.values())
    return tuple((name, read()) for name, read in AMBIENT.items() if name not in asked)


def steps_aside() -> str:
    """Why the present state lets only plain Python run, or "" if compiled code may."""
    return why_aside({name: AMBIENT[name]() for name, _, _ in _ASIDE})


def why_aside(ambient: Mapping[str, Constant]) -> str:
    """The same for a state that was read before."""
    for name, ordinary, reason in _ASIDE:
        if ambient[name] != ordinary:
            return reason
    return ""
