"""What the native driver needs of this process, found by probing and verified before use.

    context().address         the `context` record (ir/records.py) with layouts and functions
    context().have            {"native", "storage", "wrap", "shims", "blas", "batch", "openmp"}
    context({"blas"}).have    the same without the BLAS: tests force each fallback this way

Names and layouts here are no contract of torch, CPython or the BLAS, so each probe makes a real
object, checks what it sees against the public answer on several examples, and is absent otherwise:
    native    Python's C functions, the place of at::Tensor in a tensor object, torch's data pointer
    storage   where TensorImpl and StorageImpl keep the data pointer (else one shim call an input)
    wrap      a tensor handle to a Python object (else outputs are made by torch.empty_strided)
    shims     views of tensors and questions to them in C (else library calls go through Python)
    blas      sgemm_ and dgemm_ of libtorch_cpu (else torch.matmul)
    batch     their batched forms (else one call a matrix)
    openmp    torch's own OpenMP runtime (else one thread; a second runtime would oversubscribe)
`PREHEAT_FORCE_FALLBACK=blas,openmp` in the environment removes features too.
"""

import ctypes
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from preheat.base.errors import UserError, nearest
from preheat.ir.records import RECORDS, WORD_BYTES, offset
from preheat.ir.types import DTYPES
from preheat.run import gpu

FEATURES = ("native", "storage", "wrap", "shims", "blas", "batch", "openmp", "grad_mode")
BYTES_PAYLOAD = 32  # the driver's code counts on it; verified by _probe_native

_PYTHON = {
    "save_thread": "PyEval_SaveThread",
    "restore_thread": "PyEval_RestoreThread",
    "incref": "Py_IncRef",
    "decref": "Py_DecRef",
    "tuple_new": "PyTuple_New",
    "tuple_set": "PyTuple_SetItem",
    "tuple_get": "PyTuple_GetItem",
    "tuple_size": "PyTuple_Size",
    "vectorcall": "PyObject_Vectorcall",
    "long_from": "PyLong_FromLongLong",
    "long_as": "PyLong_AsVoidPtr",
    "error_matches": "PyErr_ExceptionMatches",
    "error_clear": "PyErr_Clear",
    "unicode_compare": "PyUnicode_Compare",
    "get_attribute": "PyObject_GetAttr",
}
# THPVariable_Wrap(const at::TensorBase&), and the older by-value form: both get an address.
_WRAP = ("_Z16THPVariable_WrapRKN2at10TensorBaseE", "_Z16THPVariable_WrapN2at10TensorBaseE")
_TENSOR_IMPL_BYTES, _STORAGE_IMPL_BYTES = 184, 64  # no further than these objects reach

Found = dict[str, int]  # words of the context record


class Context:
    """The probed facts of this process. Keep it alive as long as code may use `address`.

    have          features that were found and verified
    dtype_codes   dtype name -> torch's number for it, empty without "wrap"
    """

    def __init__(self, words: Found, have: frozenset[str], dtype_codes: dict[str, int]):
        self.have, self.dtype_codes, self.words = have, dtype_codes, words
        self._record = (ctypes.c_uint64 * len(RECORDS["context"]))()
        for name, value in words.items():
            self._record[offset("context", name) // WORD_BYTES] = value

    @property
    def address(self) -> int:
        return ctypes.addressof(self._record)

    def add_gpu(self) -> bool:
        """Finds what launches kernels on a GPU, once torch has initialised it; whether it is there."""
        if "get_stream" not in self.words and "wrap" in self.have:
            self.words.update(_probe_gpu())
            for name in _GPU_WORDS:
                self._record[offset("context", name) // WORD_BYTES] = self.words.get(name, 0)
        return "get_stream" in self.words

    def mark_forked(self) -> None:
        """From now on one thread: an OpenMP region hangs in a forked child."""
        self._record[offset("context", "is_forked") // WORD_BYTES] = 1


def context(without: frozenset[str] | set[str] = frozenset()) -> Context:
    """The context of this process, without the features `without` and those of the environment."""
    forced = {name for name in os.environ.get("PREHEAT_FORCE_FALLBACK", "").split(",") if name}
    left_out = frozenset(without) | forced
    for name in left_out - set(FEATURES):
        hint = nearest(name, FEATURES)
        raise UserError(f"unknown feature {name!r} in PREHEAT_FORCE_FALLBACK; {hint}")
    return _context(left_out)


@functools.cache
def _context(left_out: frozenset[str]) -> Context:
    words: Found = {}
    have: set[str] = set()
    for name, needs, probe in _PROBES:
        if name in left_out or not have.issuperset(needs):
            continue
        found = probe(words)
        if found is not None:
            words.update(found)
            have.add(name)
    made = Context(words, frozenset(have), _dtype_codes() if "wrap" in have else {})
    os.register_at_fork(after_in_child=made.mark_forked)
    return made


# ---------------------------------------------------------------------------- libraries
@functools.cache
def _library(name: str) -> ctypes.PyDLL:
    """A library of torch, already loaded; it also answers for what it links to."""
    suffix = {"darwin": "dylib"}.get(sys.platform, "so")
    return ctypes.PyDLL(str(Path(torch.__file__).parent / "lib" / f"lib{name}.{suffix}"))


def function_of(name: str, library: str = "torch_cpu") -> Callable | None:
    """A C function of torch, callable while the GIL is held, or None when there is none."""
    return getattr(_library(library), name, None)


def address_of(function: Callable) -> int:
    """Where a C function begins."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _addresses(names: dict[str, str]) -> Found | None:
    """field -> address of the function of that name, or None when one is absent."""
    functions = {field: function_of(name) for field, name in names.items()}
    if None in functions.values():
        return None
    return {field: address_of(function) for field, function in functions.items()}


def _words_equal(start: int, size: int, value: int) -> set[int]:
    """Offsets below `size` of the words after `start` that equal `value`."""
    return {
        at for at in range(0, size, 8) if ctypes.c_uint64.from_address(start + at).value == value
    }


def _examples() -> list[torch.Tensor]:
    """Tensors whose addresses and offsets differ from each other and from anything near them."""
    long = torch.empty(70_000, device="cpu")
    doubles = torch.empty(40, dtype=torch.float64, device="cpu")
    return [
        long.as_strided((2, 3), (5, 1), 12_347),
        long.as_strided((1,), (1,), 65_011),
        # the deleter's context of this one is no data pointer, though it stands beside it
        torch.frombuffer(bytearray(64), dtype=torch.uint8)[7:],
        torch.nn.Parameter(doubles[11:]),
    ]


# ---------------------------------------------------------------------------- probes
def _probe_native(words: Found) -> Found | None:
    payload = b"\x01preheat\x02payload"
    if ctypes.string_at(id(payload) + BYTES_PAYLOAD, len(payload)) != payload:
        return None
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return None
    offsets = set(range(0, torch.Tensor.__basicsize__, 8))
    for tensor in _examples():
        offsets &= _words_equal(id(tensor), torch.Tensor.__basicsize__, tensor._cdata)
    functions = {field: getattr(ctypes.pythonapi, name, None) for field, name in _PYTHON.items()}
    shims = _addresses({"get_data_ptr": "aoti_torch_get_data_ptr"})
    if len(offsets) != 1 or None in functions.values() or shims is None:
        return None
    (tensor_offset,) = offsets
    if not all(_data_pointer(t, tensor_offset) == t.data_ptr() for t in _examples()):
        return None
    python = {field: address_of(function) for field, function in functions.items()}
    return {"tensor_offset": tensor_offset, "exception_class": id(Exception), **python, **shims}


def _data_pointer(tensor: torch.Tensor, tensor_offset: int) -> int:
    out = ctypes.c_void_p()
    handle = ctypes.c_void_p(id(tensor) + tensor_offset)
    code = function_of("aoti_torch_get_data_ptr")(handle, ctypes.byref(out))
    return (out.value or 0) if code == 0 else -1


def _probe_storage(words: Found) -> Found | None:
    """Three offsets, each the only one that fits all examples."""
    in_impl = set(range(8, _TENSOR_IMPL_BYTES, 8))
    in_elements = set(in_impl)
    in_storage = set(range(8, _STORAGE_IMPL_BYTES, 8))
    for tensor in _examples():
        impl, storage = tensor._cdata, tensor.untyped_storage()
        in_impl &= _words_equal(impl, _TENSOR_IMPL_BYTES, storage._cdata)
        in_storage &= _words_equal(storage._cdata, _STORAGE_IMPL_BYTES, storage.data_ptr())
        in_elements &= _words_equal(impl, _TENSOR_IMPL_BYTES, tensor.storage_offset())
    if not len(in_impl) == len(in_storage) == len(in_elements) == 1:
        return None
    return {
        "storage_offset": in_impl.pop(),
        "data_offset": in_storage.pop(),
        "element_offset": in_elements.pop(),
    }


def _probe_wrap(words: Found) -> Found | None:
    shims = _addresses(
        {
            "empty_strided": "aoti_torch_empty_strided",
            "delete_tensor": "aoti_torch_delete_tensor_object",
        }
    )
    wraps = [f for f in (function_of(name, "torch_python") for name in _WRAP) if f is not None]
    if shims is None or not wraps or not _dtype_codes():
        return None
    found = {"wrap_tensor": address_of(wraps[0]), **shims}
    cases = (("float32", (3, 4), (1, 3)), ("int64", (), ()), ("bool", (0, 2), (2, 1)))
    return found if all(_makes(found["wrap_tensor"], *case) for case in cases) else None


def _makes(wrap: int, dtype: str, sizes: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether the shims make a tensor of that type on the CPU, with one reference to it."""
    handle = ctypes.c_void_p()
    words = ctypes.c_int64 * max(len(sizes), 1)
    code = function_of("aoti_torch_empty_strided")(
        ctypes.c_int64(len(sizes)),
        words(*sizes),
        words(*strides),
        ctypes.c_int32(_dtype_codes()[dtype]),
        0,
        0,
        ctypes.byref(handle),
    )
    if code:
        return False
    made = wrapped(wrap, handle)
    seen = str(made.dtype), tuple(made.shape), made.stride(), made.device
    return (
        seen == (f"torch.{dtype}", sizes, strides, torch.device("cpu"))
        and sys.getrefcount(made) == 2
    )


def wrapped(wrap: int, handle: ctypes.c_void_p) -> torch.Tensor:
    """The tensor of a handle, which ends here. `wrap`: the address of THPVariable_Wrap."""
    tensor = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p)(wrap)(handle)
    function_of("aoti_torch_delete_tensor_object")(handle)
    return tensor


def _probe_shims(words: Found) -> Found | None:
    found = _addresses(
        {
            "reinterpret": "aoti_torch__reinterpret_tensor",
            "get_dim": "aoti_torch_get_dim",
            "get_sizes": "aoti_torch_get_sizes",
            "get_strides": "aoti_torch_get_strides",
            "from_blob": "aoti_torch_create_tensor_from_blob",
        }
    )
    if found is None:
        return None
    base = _examples()[0]  # sizes (2, 3), strides (5, 1)
    rank, sizes, strides = ctypes.c_int64(), ctypes.c_void_p(), ctypes.c_void_p()
    view, two = ctypes.c_void_p(), ctypes.c_int64 * 2
    handle = ctypes.c_void_p(id(base) + words["tensor_offset"])
    codes = [
        function_of("aoti_torch_get_dim")(handle, ctypes.byref(rank)),
        function_of("aoti_torch_get_sizes")(handle, ctypes.byref(sizes)),
        function_of("aoti_torch_get_strides")(handle, ctypes.byref(strides)),
        function_of("aoti_torch__reinterpret_tensor")(
            handle, ctypes.c_int64(2), two(3, 1), two(1, 5), ctypes.c_int64(5), ctypes.byref(view)
        ),
    ]
    if any(codes) or rank.value != 2:
        return None
    told = [tuple(two.from_address(at.value)) for at in (sizes, strides)]
    made = wrapped(words["wrap_tensor"], view)
    is_view = made.data_ptr() == base.data_ptr() + 20 and made.stride() == (1, 5)
    blob = ctypes.c_void_p()
    code = function_of("aoti_torch_create_tensor_from_blob")(
        ctypes.c_void_p(base.data_ptr()), ctypes.c_int64(2), two(3, 2), two(1, 5),
        ctypes.c_int64(0), ctypes.c_int32(_dtype_codes()["float32"]), 0, 0, ctypes.byref(blob))
    lens = None if code else wrapped(words["wrap_tensor"], blob)
    is_lens = lens is not None and (lens.data_ptr(), lens.shape, lens.stride(), lens.dtype) == (
        base.data_ptr(), (3, 2), (1, 5), torch.float32)
    return found if told == [(2, 3), (5, 1)] and is_view and is_lens else None


@functools.cache
def _dtype_codes() -> dict[str, int]:
    """dtype name -> the number that torch's shims use, for those that a plan can name."""
    functions = {name: function_of(f"aoti_torch_dtype_{name}") for name in sorted(DTYPES)}
    return {name: function() for name, function in functions.items() if function is not None}


def _probe_blas(words: Found) -> Found | None:
    """mkl_set_threads may stay 0: other libraries have no such call."""
    for name, dtype in (("sgemm_", torch.float32), ("dgemm_", torch.float64)):
        if function_of(name) is None or not _multiplies(name, dtype, is_grouped=False):
            return None
    set_threads = function_of("MKL_Set_Num_Threads_Local")
    return {"mkl_set_threads": address_of(set_threads) if set_threads else 0}


def _probe_batch(words: Found) -> Found | None:
    for name, dtype in (("sgemm_batch_", torch.float32), ("dgemm_batch_", torch.float64)):
        if function_of(name) is None or not _multiplies(name, dtype, is_grouped=True):
            return None
    return {}


def _multiplies(name: str, dtype: torch.dtype, is_grouped: bool) -> bool:
    """Whether the routine computes b^T a^T with one plain and one transposed operand."""
    # no random numbers: those are the user's
    a = torch.arange(12, dtype=dtype, device="cpu").view(4, 3)
    b = torch.arange(15, dtype=dtype, device="cpu").view(5, 3).neg()
    out = torch.empty(4, 5, dtype=dtype, device="cpu")
    scalar = ctypes.c_float if dtype is torch.float32 else ctypes.c_double
    number = ctypes.c_int64  # little-endian: right for libraries with 32-bit integers too
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in (b, a, out)]
    b_at, a_at, out_at = map(ctypes.byref, pointers) if is_grouped else pointers
    flags = (ctypes.c_char(b"T"), ctypes.c_char(b"N"))
    arguments = [
        *map(ctypes.byref, flags),
        *(ctypes.byref(number(n)) for n in (5, 4, 3)),
        ctypes.byref(scalar(1.0)),
        b_at,
        ctypes.byref(number(3)),
        a_at,
        ctypes.byref(number(3)),
        ctypes.byref(scalar(0.0)),
        out_at,
        ctypes.byref(number(5)),
    ]
    if is_grouped:
        arguments += [ctypes.byref(number(1)), ctypes.byref(number(1))]
    routine = function_of(name)
    routine.restype = None
    routine(*arguments)
    return torch.equal(out, (a[:, None] * b).sum(2))


def _probe_openmp(words: Found) -> Found | None:
    """The runtime that libtorch_cpu itself is linked to, known by its thread count."""
    found = _addresses(
        {
            "gomp_parallel": "GOMP_parallel",
            "omp_max_threads": "omp_get_max_threads",
            "omp_thread": "omp_get_thread_num",
            "omp_team": "omp_get_num_threads",
        }
    )
    if found is None or function_of("omp_get_max_threads")() != torch.get_num_threads():
        return None
    return found


def _probe_grad_mode(words: Found) -> Found | None:
    found = _addresses({"set_grad_mode": "aoti_torch_grad_mode_set_enabled"})
    if found is None:
        return None
    set_mode = ctypes.CFUNCTYPE(None, ctypes.c_bool)(found["set_grad_mode"])
    with torch.enable_grad():
        set_mode(False)
        was_off = not torch.is_grad_enabled()
        set_mode(True)
        return found if was_off and torch.is_grad_enabled() else None


_GUARD_WORDS = ("create_guard", "delete_guard")
_GPU_FUNCTIONS = {
    "launch_kernel": "cuLaunchKernel",
    "launch_together": "cuLaunchCooperativeKernel",
    "launch_graph": "cuGraphLaunch",
    "set_kernel_node": "cuGraphExecKernelNodeSetParams_v2",
    "set_copy_node": "cuGraphExecMemcpyNodeSetParams",
    "is_capturing": "cuStreamIsCapturing",
}
_GPU_WORDS = (*_GPU_FUNCTIONS, "get_stream", "bind_device", *_GUARD_WORDS)


def _probe_gpu() -> Found:
    """The driver's functions (0 for one that it lacks), and torch's answer to which stream is
    current."""
    get_stream = function_of("aoti_torch_get_current_cuda_stream", "torch_cuda")
    if get_stream is None:
        return {}
    stream, index = ctypes.c_void_p(), torch.cuda.current_device()
    other = torch.cuda.Stream(index)
    with torch.cuda.stream(other):
        code = get_stream(ctypes.c_int32(index), ctypes.byref(stream))
    if code or stream.value != other.cuda_stream:
        return {}
    return {
        **{word: gpu.address(name) for word, name in _GPU_FUNCTIONS.items()},
        "get_stream": address_of(get_stream),
        "bind_device": id(gpu.bind_device),
        **_probe_guard(),
    }


def _probe_guard() -> Found:
    """What makes another GPU current for a while: nothing where there is one, or no such shim."""
    names = {word: f"aoti_torch_{word.replace('_', '_cuda_')}" for word in _GUARD_WORDS}
    functions = {word: function_of(name, "torch_cuda") for word, name in names.items()}
    if torch.cuda.device_count() < 2 or None in functions.values():
        return {}
    before, guard = torch.cuda.current_device(), ctypes.c_void_p()
    other = (before + 1) % torch.cuda.device_count()
    if functions["create_guard"](ctypes.c_int32(other), ctypes.byref(guard)):
        return {}
    was_chosen = torch.cuda.current_device() == other
    code = functions["delete_guard"](guard)
    if code or not was_chosen or torch.cuda.current_device() != before:
        return {}
    return {word: address_of(function) for word, function in functions.items()}


# name, the features it builds on, the probe: it gets the words so far; None means absent
_PROBES: tuple[tuple[str, tuple[str, ...], Callable[[Found], Found | None]], ...] = (
    ("native", (), _probe_native),
    ("storage", ("native",), _probe_storage),
    ("wrap", ("native",), _probe_wrap),
    ("shims", ("wrap",), _probe_shims),
    ("blas", ("native",), _probe_blas),
    ("batch", ("blas",), _probe_batch),
    ("openmp", ("native",), _probe_openmp),
    ("grad_mode", ("native",), _probe_grad_mode),
)
