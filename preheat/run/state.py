"""Ambient state read natively: which rows say that a row of `bridge/ambient` is as it was.

    add_state(table, "grad_enabled", False)  ->  True: rows were added
                                             ->  False: check it in Python on every call

Each reader adds rows that follow exported functions of torch (or fields of CPython's thread state
found by experiment) to the state, and then compares what they found with what Python's getter says.
If a symbol is missing or the two disagree, the rows are dropped again.
"""

import ctypes
import functools
import sys
import types
from collections.abc import Callable, Iterator

import torch
from torch.autograd import forward_ad

from preheat.base.identity import identity
from preheat.bridge.ops import private
from preheat.ir.rows import ALL_BITS, ZERO
from preheat.ir.trace import Constant
from preheat.run.layout import WORD, layout, read, word
from preheat.run.table import Table
from preheat.run.tensor_layout import symbol, tensor_layout

BYTE = 0xFF
_INT32 = 0xFFFFFFFF


class NotNative(Exception):
    """This state has no native reader here, or not for this value."""


def add_state(table: Table, name: str, value: Constant, without: tuple[str, ...] = ()) -> bool:
    """Adds rows that hold exactly while ambient row `name` is `value`, which it must be now.

    False, and no rows, if that can not be expressed; always so for names in `without`.
    """
    reader = READERS.get(name)
    if reader is None or name in without:
        return False
    mark = table.mark()
    try:
        if reader(table, value):
            return True
    except NotNative:
        pass
    table.undo(mark)
    return False


# ---------------------------------------------------------------------------- following functions
def _function(name: str) -> int:
    address = symbol(name)
    if address is None:
        raise NotNative(name)
    return address


def _answer(
    name: str, mask: int, meaning: Callable[[int], Constant]
) -> Callable[[Table, Constant], bool]:
    """A reader of what function `name` answers, under `mask`; `meaning` makes it Python's value."""

    def read_answer(table: Table, value: Constant) -> bool:
        return meaning(table.call(_function(name), mask=mask) & mask) == value

    return read_answer


def _autocast(device: int) -> Callable[[Table, Constant], bool]:
    """(enabled, dtype) of a device type."""

    def read_autocast(table: Table, value: Constant) -> bool:
        where = table.constant(device) if device else ZERO
        enabled = table.call(
            _function("_ZN2at8autocast19is_autocast_enabledEN3c1010DeviceTypeE"), where, BYTE
        )
        if bool(enabled & BYTE) is not value[0]:
            return False
        code = table.call(
            _function("_ZN2at8autocast18get_autocast_dtypeEN3c1010DeviceTypeE"), where, BYTE
        )
        return code & BYTE == dtype_code(getattr(torch, value[1]))

    return read_autocast


def dtype_code(dtype: torch.dtype) -> int:
    """The number of `dtype` inside torch."""
    where = tensor_layout()
    if where is None:
        raise NotNative("tensor layout")
    return word(torch.empty(0, dtype=dtype, device="cpu")._cdata + where.dtype) & 0xFFFF


def _default_dtype(table: Table, value: Constant) -> bool:
    code = table.call(_function("_ZN3c1031get_default_dtype_as_scalartypeEv"), mask=BYTE)
    return code & BYTE == dtype_code(getattr(torch, value))


def _default_device(table: Table, value: Constant) -> bool:
    depth = table.call(_function("_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv"))
    return value == "cpu" and depth == 0


def _autograd_state(bit: int) -> Callable[[Table, Constant], bool]:
    """A reader of a bit of the thread's AutogradState; the three bits are compared together."""

    def read_bit(table: Table, value: Constant) -> bool:
        offset = _autograd_offset()
        if offset is None:
            return False
        state = table.slot()
        table.call(_function(_AUTOGRAD_STATE), mask=0, save=state)
        bits = table.load(offset, state, mask=0b111)
        return _autograd_bits() == bits & 0b111 and bool(bits >> bit & 1) is value

    return read_bit


_AUTOGRAD_STATE = "_ZN3c1013AutogradState13get_tls_stateEv"


def _autograd_bits() -> int:
    known = (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch._C._is_fwd_grad_enabled(),
    )
    return sum(1 << i for i, is_set in enumerate(known) if is_set)


@functools.lru_cache
def _autograd_offset() -> int | None:
    """Where the state holds grad mode, inference mode and forward AD as its lowest bits."""
    state = ctypes.PYFUNCTYPE(ctypes.c_uint64)(_function(_AUTOGRAD_STATE))()
    offsets = set(range(0, 8 * WORD, WORD))
    for change in (torch.enable_grad, torch.no_grad, torch.inference_mode, torch.enable_grad):
        with change():
            memory = read(state, 8 * WORD) or b""
            offsets = {
                o for o in offsets if memory[o : o + 1] and memory[o] & 0b111 == _autograd_bits()
            }
    return offsets.pop() if len(offsets) == 1 else None


def _empty_between(name: str, first: int, last: int) -> Callable[[Table, int], None]:
    """Adds rows: the container that function `name` refers to is empty, its two cursors equal."""

    def add(table: Table) -> bool:
        state, start, end = table.slot(), table.slot(), table.slot()
        table.call(_function(name), mask=0, save=state)
        table.load(first, state, mask=0, save=start)
        table.load(last, state, mask=0, save=end)
        return table.same(start, end) == 0

    return add


def _functorch_level(table: Table, value: Constant) -> bool:
    """A std::vector: begin and end lie at its start."""
    is_empty = _empty_between("_ZN2at9functorch20getDynamicLayerStackEv", 0, WORD)
    return value == -1 and is_empty(table)


def _saved_tensor_hooks(table: Table, value: Constant) -> bool:
    """A std::deque: the cursors of its first and its past-the-end element."""
    add = _empty_between("_ZN2at23SavedTensorDefaultHooks13get_tls_stateEv", 2 * WORD, 6 * WORD)
    return value is False and _sees_a_hook() and add(table)


@functools.lru_cache
def _sees_a_hook() -> bool:
    """Whether the two cursors differ while this thread has a hook, and only then."""
    name = symbol("_ZN2at23SavedTensorDefaultHooks13get_tls_stateEv")
    if name is None:
        return False
    state = ctypes.PYFUNCTYPE(ctypes.c_uint64)(name)()

    def is_empty() -> bool:
        return word(state + 2 * WORD) == word(state + 6 * WORD)

    if not is_empty():
        return False
    torch._C._autograd._push_saved_tensors_default_hooks(lambda t: t, lambda t: t)
    saw = not is_empty()
    torch._C._autograd._pop_saved_tensors_default_hooks()
    return saw and is_empty()


def _forward_ad_level(table: Table, value: Constant) -> bool:
    return _global(table, forward_ad, "_current_level", value)


def _stream_capture(table: Table, value: Constant) -> bool:
    """Nothing is captured, and whether asking is an error stays so, until CUDA is initialised."""
    return value is not True and _global(table, torch.cuda, "_initialized", False)


def _of_the_process(is_fixed: Callable[[Constant], bool]) -> Callable[[Table, Constant], bool]:
    """No row: what `is_fixed` says of the value does not change while the process lives."""
    return lambda table, value: is_fixed(value)


def _all_have_bf16(value: Constant) -> bool:
    """The answer is the same whichever GPU is the current one."""
    count = torch.cuda.device_count()
    return value is True and all(
        torch.cuda.get_device_capability(index) >= (8, 0) for index in range(count))


def _accelerator(table: Table, value: Constant) -> bool:
    """An optional of C++ in a word: a device type, and whether there is one."""
    function = _function("_ZN2at11accelerator14getAcceleratorEb")
    if not table.call(function, mask=1 << 8) >> 8 & 1:
        return value is None
    code = table.call(function, mask=BYTE) & BYTE
    return value == _ACCELERATORS.get(code)


_ACCELERATORS = {1: "cuda"}  # torch's numbers of device types


def _global(table: Table, module: types.ModuleType, name: str, value: Constant) -> bool:
    """Adds a row: no global of `module` changes, while the one called `name` is `value`."""
    version = layout().dict_version
    space = vars(module)
    if version is None or space[name] is not value and space[name] != value:
        return False
    table.holds.append(space)
    table.ambient.add(identity(space))
    table.load(id(space) + version)
    return True


def _anomaly(table: Table, value: Constant) -> bool:
    flags = (
        "_ZN5torch8autograd11AnomalyMode8_enabledE",
        "_ZN5torch8autograd11AnomalyMode10_check_nanE",
    )
    return tuple(bool(table.load(_function(name), mask=BYTE) & BYTE) for name in flags) == value


def _jit_tracing(table: Table, value: Constant) -> bool:
    """A reference to a shared pointer: null when nothing is traced."""
    state = table.slot()
    table.call(_function("_ZN5torch3jit6tracer15getTracingStateEv"), mask=0, save=state)
    return value is False and table.load(0, state) == 0


# ------------------------------------------------------------------------ torch's global context
def _context_flags(*names: str) -> Callable[[Table], tuple[bool, ...]]:
    """Adds rows for member functions `bool at::Context::name() const`."""

    def add(table: Table) -> tuple[bool, ...]:
        context = table.slot()
        table.call(_function("_ZN2at13globalContextEv"), mask=0, save=context)
        mangled = [f"_ZNK2at7Context{len(name)}{name}Ev" for name in names]
        return tuple(bool(table.call(_function(name), context, BYTE) & BYTE) for name in mangled)

    return add


def _flags(*names: str) -> Callable[[Table, Constant], bool]:
    return lambda table, value: _context_flags(*names)(table) == value


_ATTENTION = _context_flags(
    "userEnabledFlashSDP", "userEnabledMemEfficientSDP", "userEnabledMathSDP",
    "userEnabledCuDNNSDP",
)


def _attention(table: Table, value: Constant) -> bool:
    """Four flags, then the order of preference: five numbers that lie in the context."""
    return _ATTENTION(table) == value[:4] and _numbers_in_context(table, value[4:])


def _float32_rounding(table: Table, value: Constant) -> bool:
    """(of products, of convolutions): `Context::float32Precision(backend, op)`, whose enums are c10's."""
    function = _function("_ZNK2at7Context16float32PrecisionENS_14Float32BackendENS_9Float32OpE")
    getter = private("_C._get_fp32_precision_getter")
    if getter is None:
        return False
    context, backend = table.slot(), table.constant(_CUDA)
    table.call(_function("_ZN2at13globalContextEv"), mask=0, save=context)
    found = []
    for name, op in _FLOAT32_OPS.items():
        code = table.call(function, context, BYTE, table.constant(op), backend) & BYTE
        if _PRECISIONS.get(code) != getter("cuda", name):
            return False
        found.append(code == _TF32)
    return tuple(found) == value


_CUDA, _TF32 = 1, 2
_FLOAT32_OPS = {"matmul": 3, "conv": 1}
_PRECISIONS = {0: "none", 1: "ieee", _TF32: "tf32", 3: "bf16"}


def _numbers_in_context(table: Table, numbers: tuple[int, ...]) -> bool:
    """Adds rows for the one place of the context where `numbers` stand as 32-bit integers."""
    context = ctypes.PYFUNCTYPE(ctypes.c_uint64)(_function("_ZN2at13globalContextEv"))()
    memory = read(context, 4096)
    pattern = b"".join(n.to_bytes(4, "little", signed=True) for n in numbers)
    if memory is None or memory.count(pattern) != 1 or memory.index(pattern) % 4:
        return False
    start = context + memory.index(pattern)
    for index in range(0, len(numbers) - 1, 2):
        table.load(start + 4 * index)
    if len(numbers) % 2:
        table.load(start + 4 * (len(numbers) - 1), mask=_INT32)
    return True


# ------------------------------------------------------------------------- CPython's thread state
def _thread_field(setter: Callable, getter: Callable) -> Callable[[Table, Constant], bool]:
    """A reader of the pointer that `setter` sets in the thread's state; ordinary: null."""

    def read_field(table: Table, value: Constant) -> bool:
        offset = _thread_offset(setter, getter)
        if offset is None or value is not False:
            return False
        state = table.slot()
        table.call(_current_thread(), mask=0, save=state)
        return table.load(offset, state) == 0

    return read_field


def _current_thread() -> int:
    return ctypes.cast(ctypes.pythonapi.PyThreadState_Get, ctypes.c_void_p).value


@functools.lru_cache
def _thread_offset(setter: Callable, getter: Callable) -> int | None:
    """Where the thread state points to the function given to `setter`; None while one is set."""
    if getter() is not None:
        raise NotNative("a trace or profile function is set")
    state = ctypes.PYFUNCTYPE(ctypes.c_uint64)(_current_thread())()
    before = read(state, 64 * WORD)
    watchers = (_Ignore(), _Ignore())
    found = []
    for watcher in watchers:
        setter(watcher)
        found.append(read(state, 64 * WORD))
        setter(None)
    if before is None or None in found:
        return None
    offsets = [
        o for o in range(0, 64 * WORD, WORD)
        if all(f[o : o + WORD] == id(w).to_bytes(WORD, "little") for f, w in zip(found, watchers))
        and not any(before[o : o + WORD])
    ]
    return offsets[0] if len(offsets) == 1 else None


def _monitoring(table: Table, value: Constant) -> bool:
    """No tool is registered: the interpreter holds no names of tools. (A tool that is registered
    and asks for no events is seen by Python alone.)"""
    if not hasattr(sys, "monitoring"):
        return value == ()
    names = _tool_names()
    if names is None or value != ():
        return False
    return not any(table.load(names + WORD * tool) for tool in range(_TOOLS))


_TOOLS = 6  # those that user code can register


@functools.lru_cache
def _tool_names() -> int | None:
    """Where the interpreter keeps the names of its tools, one pointer each; None if unsure."""
    monitoring = sys.monitoring
    if any(monitoring.get_tool(tool) is not None for tool in range(_TOOLS)):
        raise NotNative("a tool of sys.monitoring is registered")
    names = [f"<preheat {tool}>" for tool in range(_TOOLS)]
    for tool, name in enumerate(names):
        monitoring.use_tool_id(tool, name)
    try:
        pattern = b"".join(id(name).to_bytes(WORD, "little") for name in names)
        places = list(_places_of(pattern, _interpreter(), _INTERPRETER_BYTES))
    finally:
        for tool in range(_TOOLS):
            monitoring.free_tool_id(tool)
    return places[0] if len(places) == 1 else None


def _interpreter() -> int:
    return ctypes.PYFUNCTYPE(ctypes.c_uint64)(("PyInterpreterState_Get", ctypes.pythonapi))()


def _places_of(pattern: bytes, start: int, size: int) -> Iterator[int]:
    """Addresses in the `size` bytes from `start` where `pattern` stands, up to the first gap."""
    for chunk in range(start, start + size, _CHUNK):
        memory = read(chunk, _CHUNK)
        if memory is None:
            return
        offset = memory.find(pattern[:WORD])
        if offset >= 0 and read(chunk + offset, len(pattern)) == pattern:
            yield chunk + offset


_INTERPRETER_BYTES = 1 << 20  # 3.12: 0.4 MB
_CHUNK = 4096


class _Ignore:
    """A trace function that traces nothing."""

    def __call__(self, *event: object) -> None:
        return None


READERS: types.MappingProxyType[str, Callable[[Table, Constant], bool]] = types.MappingProxyType({
    "grad_enabled": _autograd_state(0), "inference_mode": _autograd_state(1),
    "forward_ad": _autograd_state(2),
    "autocast_cpu": _autocast(0), "autocast_cuda": _autocast(1),
    "autocast_cache": _answer("_ZN2at8autocast25is_autocast_cache_enabledEv", BYTE, bool),
    "default_dtype": _default_dtype, "default_device": _default_device,
    "function_modes": _answer("_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv", ALL_BITS, int),
    "function_overrides": _answer(
        "_ZN2at4impl22PythonTorchFunctionTLS18get_disabled_stateEv", BYTE, lambda state: state == 0
    ),
    "dispatch_modes": _answer("_ZN3c104impl20TorchDispatchModeTLS9stack_lenEv", ALL_BITS, int),
    "functorch_level": _functorch_level, "forward_ad_level": _forward_ad_level, "anomaly": _anomaly,
    "saved_tensor_hooks": _saved_tensor_hooks, "jit_tracing": _jit_tracing,
    "torch_profiler": _answer("_ZN5torch8profiler4impl15profilerEnabledEv", BYTE, bool),
    "deterministic": _flags(
        "deterministicAlgorithms", "deterministicAlgorithmsWarnOnly",
        "deterministicFillUninitializedMemory",
    ),
    "attention": _attention,
    "float32_rounding": _float32_rounding,
    "library_choice": _flags("userEnabledMkldnn", "userEnabledNNPACK", "userEnabledCuDNN"),
    "trace_function": _thread_field(sys.settrace, sys.gettrace),
    "profile_function": _thread_field(sys.setprofile, sys.getprofile),
    "monitoring": _monitoring, "stream_capture": _stream_capture,
    "cuda_available": _of_the_process(lambda value: True),
    "cuda_bf16": _of_the_process(_all_have_bf16),
    "accelerator": _accelerator,
})
