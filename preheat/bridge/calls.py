"""Calls into torch's C code, by table: which are ops, which read metadata, which read or set state.

    torch_call(torch.relu)                     Call("op", ...)
    torch_call(torch.Tensor.size)              Call("metadata", ...)
    torch_call(torch.Tensor.data_ptr)          Call("refuse", "tensor_escape")

An *op* is seen by the recorder through the dispatcher, so any function of torch's op modules may be
one; a call that then yields something the recorder did not see (a number, an array) is caught by
its result. Rows are needed only for what the result does not betray: metadata (covered by the
tensor's guard), ambient state (a row of `bridge/ambient`), setters, calls with a hidden effect, and
*readers*: ops that may look at elements where the dispatcher does not see it (`reads_memory`).
"""

import os
import sys
import types
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from preheat.bridge.ambient import WHEN_READ
from preheat.bridge.ops import private

_C = torch._C


LIBRARY_FOLDERS = (
    os.path.dirname(torch.__file__) + os.sep,
    os.path.join(os.path.dirname(os.path.dirname(torch.__file__)), "numpy") + os.sep,
)
"""Where a break is not blamed on: the line of the user's that led there is named."""


class Call(NamedTuple):
    """How capture treats a call. `kind` is explained in `capture/policies.py`; `reason` names a
    refusal."""

    kind: str
    reason: str = ""


# Objects that are pinned by identity, and objects that are pinned by the values of these
# attributes.
IDENTITY_TYPES: tuple[type, ...] = (
    torch.dtype, torch.layout, torch.memory_format, torch._ops.OpOverload,
    torch._ops.OpOverloadPacket,
)
VALUE_TYPES: dict[type, tuple[str, ...]] = {torch.device: ("type", "index")}

_NAMED_BY_TEXT = (torch.dtype, torch.layout, torch.memory_format)
_PropModule = torch.backends.PropModule

_METADATA = """
    size dim stride numel nelement element_size ndimension is_floating_point is_complex is_signed
    is_contiguous is_same_size get_device has_names is_inference is_conj is_neg is_coalesced
    __len__ type dense_dim sparse_dim is_nested is_tensor is_storage result_type can_cast
    promote_types _has_compatible_shallow_copy_type is_nonzero_static
""".split()
_REFUSED: dict[str, str] = {
    # no op of the dispatcher, and the result does not betray them
    **dict.fromkeys((
        "retain_grad", "register_hook", "_register_hook", "backward", "set_data",
        "share_memory_", "rename_", "_backward", "__setstate__",
        "register_post_accumulate_grad_hook",
        "_fix_weakref", "_make_subclass", "_make_wrapper_subclass",
        "_clear_non_serializable_cached_data",
        "module_load", "_make_dtensor", "apply_", "map_", "map2_",
    ), "tensor_escape"),
    **dict.fromkeys((
        "tolist", "numpy", "data_ptr", "__array__", "untyped_storage", "storage", "_typed_storage",
        "__dlpack__", "from_numpy", "frombuffer", "storage_offset", "_storage", "__reduce_ex__",
    ), "tensor_escape"),
    **dict.fromkeys(("set_", "resize_", "resize_as_"), "metadata_write"),
    # rows of several lengths as one tensor, without sizes
    **dict.fromkeys((
        "_nested_tensor_from_mask", "_nested_tensor_from_tensor_list", "_nested_tensor_storage_offsets",
        "_nested_from_padded_and_nested_example", "_nested_view_from_buffer", "_nested_view_from_buffer_copy",
    ), "tensor_subclass"),
    "_nested_tensor_from_mask_left_aligned": "data_dependent_number",
    **dict.fromkeys((
        "__bool__", "__int__", "__float__", "__index__", "__complex__",
    ), "data_dependent_number"),
}
# Methods that a kind of `capture/policies` treats, and what they are refused as where that fails.
_TREATED: dict[str, tuple[str, str]] = {
    "requires_grad_": ("unchanged", "new_leaf"), "detach_": ("detached", "metadata_write"),
    "item": ("element", "data_dependent_number"),
}
# Attributes of a tensor that its guard covers, and those that are ops.
TENSOR_ATTRIBUTES = frozenset("""
    shape dtype device ndim requires_grad layout itemsize nbytes is_cuda is_cpu is_sparse
    is_sparse_csr is_quantized is_meta is_mkldnn is_mps is_xpu is_xla is_hpu is_ipu is_vulkan
    is_maia is_mtia is_ort is_nested names __class__ __dict__ T mT H mH real imag
""".split())

_AMBIENT = (
    _C.is_grad_enabled, _C._get_tracing_state, _C._is_torch_function_enabled,
    _C._is_torch_function_all_disabled, _C.is_inference_mode_enabled, _C.is_autocast_enabled,
    _C.is_autocast_cache_enabled, _C.get_autocast_dtype, _C.get_autocast_gpu_dtype,
    _C.get_autocast_cpu_dtype, _C.is_autocast_cpu_enabled, _C._is_any_autocast_enabled,
    _C.get_default_dtype, _C._get_cudnn_enabled, _C._get_mkldnn_enabled, _C._get_nnpack_enabled,
    _C._get_flash_sdp_enabled, _C._get_mem_efficient_sdp_enabled,
    _C._get_math_sdp_enabled, _C._get_cudnn_sdp_enabled, _C._get_deterministic_algorithms,
    _C._get_deterministic_algorithms_warn_only, _C._get_deterministic_fill_uninitialized_memory,
    _C._len_torch_function_stack, _C._is_torch_function_mode_enabled, _C._is_autocast_available,
    _C.is_anomaly_enabled, _C.is_anomaly_check_nan_enabled, _C._is_fwd_grad_enabled,
    _C._functorch.maybe_current_level, _C._functorch.maybe_get_level, _C._is_tracing,
    torch.get_default_dtype, torch.is_grad_enabled, torch.is_autocast_enabled,
    torch.is_inference_mode_enabled, _C._get_privateuse1_backend_name,
    getattr(_C, "_are_functorch_transforms_active", torch.is_grad_enabled),
)
_SETTERS = (
    _C._set_grad_enabled, _C._set_fwd_grad_enabled, torch.set_autocast_enabled,
    torch.set_autocast_dtype, torch.set_autocast_cache_enabled, torch.autocast_increment_nesting,
    torch.autocast_decrement_nesting, torch.clear_autocast_cache,
)
_NOTHING = (_C._log_api_usage_once,)
# Its guard sets aside all that is entered in this thread, a dispatch mode included.
_INFERENCE_MODE = tuple(getattr(f, "__func__", f) for f in (
    _C._InferenceMode, _C._InferenceMode.__enter__, _C._InferenceMode.__exit__))
# These look at the types of their arguments only.
BY_TYPES = (
    _C._has_torch_function, _C._has_torch_function_unary, _C._has_torch_function_variadic,
    _C._functorch.is_functorch_wrapped_tensor, _C._functorch.is_batchedtensor,
    _C._functorch.is_gradtrackingtensor,
)
_PURE = (*BY_TYPES, torch.Size, torch.device, torch.finfo, torch.iinfo)
_PURE_TYPES = frozenset((
    torch.Size, torch.device, torch.dtype, torch.finfo, torch.iinfo, torch.layout,
    torch.memory_format,
))
# Runs the backward, with what it does around it: one host call.
ENGINE = tuple(f for f in (private("autograd.graph._engine_run_backward"),) if f is not None)
# Leave something of the program's with autograd: one host call, not one for each thing that they do there.
HOOKS = (
    torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook,
    torch.utils.hooks.RemovableHandle.remove)
# Mark a region for a profiler. Under one a call is plain Python, so here they do nothing.
PROFILER_MARKS = (torch.autograd.profiler.record_function,)
_OVERLOADS = (torch._ops.OpOverload.__call__, torch._ops.OpOverloadPacket.__call__)
# Python functions of torch that are not interpreted: a call of C and nothing else, and what looks
# at the machine and gives ambient state.
# `apply` of the program's own functions with a gradient
OWN_GRADIENTS = torch.autograd.Function.apply.__func__
NATIVE = frozenset((OWN_GRADIENTS, *_OVERLOADS, *(f for f in WHEN_READ if type(f) is types.FunctionType)))
_OP_MODULES = tuple(m for m in (
    getattr(_C, name, None) for name in ("_nn", "_fft", "_linalg", "_special", "_sparse", "_nested")
) if m is not None)
_OP_FUNCTIONS = frozenset(
    value for value in (getattr(_C._VariableFunctions, name) for name in dir(_C._VariableFunctions))
    if isinstance(value, types.BuiltinFunctionType)
) | frozenset(
    value for module in _OP_MODULES for value in vars(module).values()
    if isinstance(value, types.BuiltinFunctionType)
)
_OP_NAMES = frozenset(dir(torch.ops.aten)) | frozenset(dir(_C._VariableFunctions)) | frozenset("""
    to type type_as cpu cuda float double half bfloat16 int long short char byte bool new_tensor new
    __getitem__ __setitem__ contiguous copy_ unflatten cfloat cdouble chalf
""".split())
_PARTIAL_ROWS = {
    **{f: Call("ambient") for f in _AMBIENT},
    **{f: Call("set_ambient") for f in _SETTERS},
    **{f: Call("asked") for f in WHEN_READ},
    **{f: Call("nothing") for f in _NOTHING},
    _C._group_tensors_by_device_and_dtype: Call("pure"),
    **{f: Call("pure") for f in _PURE},
    **{f: Call("reader") for f in _OVERLOADS},
    _C._len_torch_dispatch_stack: Call("dispatch_depth"),
    **{f: Call("inference_mode") for f in _INFERENCE_MODE},
    OWN_GRADIENTS: Call("own_gradients"),
    **{f: Call("reader") for f in (torch.tensor, torch.as_tensor, torch.asarray)},
}


@lru_cache(maxsize=4096)
def torch_call(function: Any) -> Call | None:
    """The row of a C function, class or unbound C method of torch; None if torch does not own
    it."""
    row = _PARTIAL_ROWS.get(function)
    if row is not None:
        return row
    kind = type(function)
    if kind in IDENTITY_TYPES:  # torch.ops.aten.add, with or without overload
        return Call("reader")
    name = getattr(function, "__name__", "")
    owner = getattr(function, "__objclass__", None)
    if owner is None and function not in _OP_FUNCTIONS:
        return None
    if owner is not None:
        if owner in _PURE_TYPES:
            return Call("pure")
        if not (isinstance(owner, type) and issubclass(torch.Tensor, owner)) or owner is object:
            return None
    if name in _TREATED:
        return Call(*_TREATED[name])
    if name in _REFUSED:
        return Call("refuse", _REFUSED[name])
    if name in _METADATA:
        return Call("metadata")
    if name in _READERS:
        return Call("reader")
    if owner is not None and name.startswith("__") and name.endswith("__"):
        return Call("op")  # operator dunders: recorded, or betrayed by their result
    if owner is None or _is_op_name(name):
        return Call("op")
    return Call("refuse", "tensor_escape")


def reads_memory(function: Any, args: tuple) -> bool:
    """Whether `function` reads elements of a tensor in `args` below the dispatcher, unseen by a
    recorder."""
    if args and type(args[0]) in IDENTITY_TYPES:  # OpOverload.__call__
        function, args = args[0], args[1:]
    name = getattr(function, "__name__", "").partition(".")[0]
    return name in _READERS and _READERS[name](args)


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    return isinstance(value, (list, tuple)) and any(map(_holds_tensor, value))


def _in_lists(args: tuple) -> bool:
    return any(_holds_tensor(arg) for arg in args if isinstance(arg, (list, tuple)))


def _in_index(args: tuple) -> bool:
    """Tensors of an index count one by one, in a tuple or a short list; a list within is read at
    once."""
    index = args[1]
    if not isinstance(index, (list, tuple)):
        return False
    is_read_at_once = type(index) is list and len(index) >= 32
    return _in_lists((index,) if is_read_at_once else tuple(index))


def _bare_from(position: int) -> Callable[[tuple], bool]:
    return lambda args: any(isinstance(arg, torch.Tensor) for arg in args[position:])


_READERS: dict[str, Callable[[tuple], bool]] = {
    # numbers of a list are read one by one, with dispatch modes off
    **dict.fromkeys(("tensor", "as_tensor", "asarray", "new_tensor", "new"), _in_lists),
    **dict.fromkeys(("__getitem__", "__setitem__", "getitem", "setitem"), _in_index),
    # composites that read a tensor on the CPU through its pointer: sections, lengths of packed
    # sequences
    **dict.fromkeys((
        "tensor_split", "lstm", "_pad_packed_sequence", "_pack_padded_sequence",
    ), _bare_from(1)),
    # one tensor more than with plain sequences
    **dict.fromkeys(("gru", "rnn_tanh", "rnn_relu"), _bare_from(2)),
}


def is_tensor_attribute(owner: torch.Tensor, name: str, value: Any) -> bool:
    """Whether C-level attribute `name` of `owner`, which is `value`, is covered by its guard, recorded
    as ops, or a source of its own (`grad`)."""
    if name == "grad":  # of others, asking for it is a warning
        return value is None and not owner.requires_grad or owner.is_leaf or owner.retains_grad
    return name in TENSOR_ATTRIBUTES or name in _WITHOUT_GRAD and not owner.requires_grad


# What a tensor that does not require grad gives for these: None and True.
_WITHOUT_GRAD = frozenset(("grad_fn", "is_leaf"))


def name_hint(value: Any) -> tuple[str, str] | None:
    """A name that torch's own objects have but do not claim: dtypes, and what stands behind a
    PropModule."""
    kind = type(value)
    if kind in _NAMED_BY_TEXT:
        return "torch", str(value).removeprefix("torch.")
    if kind is types.FunctionType or isinstance(value, type):
        module = sys.modules.get(value.__module__) if type(value.__module__) is str else None
        if isinstance(module, _PropModule):
            return value.__module__, f"m.{value.__qualname__}"
    return None


def _is_op_name(name: str) -> bool:
    if name in _OP_NAMES:
        return True
    try:
        return getattr(torch.ops.aten, name, None) is not None
    except (RuntimeError, AttributeError):
        return False
