"""Binaries of a GPU to functions that can be launched: the driver's API, by ctypes.

    loaded = load_gpu(image, "cuda:0")
    loaded.launch("softmax_0")    Launch(function=0x55..., programs=32768, threads=128, ..)
    run(loaded.launch("softmax_0"), [x.data_ptr(), y.data_ptr()])

Functions belong to the device's primary context, the one that torch uses; an address of one never
leaves the process. Launches go to torch's current stream of the device. Requires that torch has
initialised CUDA: guards on tensors of the device saw to it. Modules stay until `unload`.
"""

import ctypes
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch

from preheat.base.dataclass import dataclass
from preheat.base.errors import InternalError, UserError
from preheat.base.events import emit
from preheat.bridge.tensors import architecture
from preheat.ir.plan import Binary, Image, Sizing
from preheat.ir.scalar import Dim, Number
from preheat.run.buffers import word_of
from preheat.run.load import Loaded, load

_SHARED_LIMIT = 48 << 10  # a program that wants more must say so
MEMORY_ALIGN_BYTES = 128  # of memory that a launch takes for itself
_MOST_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_UNITS, _COOPERATIVE = 16, 95  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, .._COOPERATIVE_LAUNCH
_ALONE = "programs of {} wait for nobody and walk whole rows: this device has no room for enough of them at once"


@dataclass(frozen=True, slots=True)
class Launch:
    """A function in the memory of device `index`, and how it is launched. Behind its parameters and sizes it takes the words
    `numbers`, the address of `memory_bytes` of the GPU's memory for itself, if that is not 0, at a multiple of MEMORY_ALIGN_BYTES,
    then `words` words that are 0. is_cooperative: all programs run at once."""

    function: int
    programs: int
    threads: int
    shared_bytes: int
    words: int
    index: int
    numbers: tuple[int, ...] = ()
    memory_bytes: int = 0
    is_cooperative: bool = False


Launches = Sequence[tuple[Launch, Sizing | None]]
_NONE: Mapping[Dim, Number] = MappingProxyType({})


class LoadedGpu:
    """The kernels of an image on one device. `launches`: of each name, one or several by sizes; `host`: those that
    run on the host."""

    def __init__(
        self, launches: Mapping[str, Launches], modules: list[ctypes.c_void_p], host: Loaded | None = None,
    ):
        self._launches, self._modules, self._host = launches, modules, host

    def address(self, name: str) -> int:
        """Where kernel `name` of the host begins. Raises InternalError for an unknown one."""
        if self._host is None:
            raise InternalError(f"no kernel {name!r} of the host in the image")
        return self._host.address(name)

    def launch(self, name: str, sizes: Mapping[Dim, Number] = _NONE) -> Launch:
        """How kernel `name` is launched. `sizes`: the values of what it takes (`ir.loop.sizes_of`). Raises
        InternalError for an unknown one."""
        for launch, sizing in self._launches.get(name, ()):
            if sizing is None:
                return launch
            if is_for(sizing, sizes):
                return replace(launch, programs=launch.programs or programs_of(sizing, sizes))
        raise InternalError(f"no kernel {name!r} in the image")

    def chooser(self, name: str, sizes: Mapping[Dim, Any]) -> Callable[[Any], tuple[Launch, int]]:
        """As `launch`, made once for many sizes: a function that gives the launch and how many programs it has.
        sizes   by what the kernel takes, a number, or a function that gives it of the same argument"""
        rows = [
            (launch, [(_counter(dims, sizes), *ends) for dims, ends in _ranges(sizing).items()], *(
                [(_counter(dims, sizes), each) for dims, each in pairs]
                for pairs in (sizing.multiples, sizing.blocks)))
            for launch, sizing in self._launches.get(name, ()) if sizing is not None]

        def choose(given: Any) -> tuple[Launch, int]:
            for launch, ranges, multiples, blocks in rows:
                for count, least, most in ranges:
                    if not least <= count(given) <= most:
                        break
                else:
                    for count, each in multiples:
                        if count(given) % each:
                            break
                    else:
                        return launch, launch.programs or math.prod([-(-count(given) // each) for count, each in blocks])
            raise InternalError(f"no kernel {name!r} in the image")

        return choose

    def most(self, name: str, size: Dim) -> int:
        """How much of `size` a program of kernel `name` takes."""
        ((_, sizing),) = self._launches[name]
        return dict(sizing.blocks)[(size,)]

    def words(self, name: str) -> int:
        """The most words that a launch of kernel `name` takes behind its parameters and numbers."""
        return max(launch.words for launch, _ in self._launches[name])

    def memory_bytes(self, name: str) -> int:
        """The most memory for itself that a launch of kernel `name` takes."""
        return max(launch.memory_bytes for launch, _ in self._launches[name])

    def unload(self) -> None:
        """Gives the memory of the code back; no kernel of it may run or be launched any more."""
        while self._modules:
            call("cuModuleUnload", self._modules.pop())


def is_for(sizing: Sizing, sizes: Mapping[Dim, Number]) -> bool:
    """Whether a binary is for these sizes."""
    is_long = all(_count(dims, sizes) >= least for dims, least in sizing.least)
    is_short = all(_count(dims, sizes) <= most for dims, most in sizing.most)
    return is_long and is_short and not any(_count(dims, sizes) % each for dims, each in sizing.multiples)


def _ranges(sizing: Sizing) -> dict[tuple[Dim, ...], tuple[float, float]]:
    """The least and the most that each product of extents may be."""
    least, most = dict(sizing.least), dict(sizing.most)
    return {dims: (least.get(dims, 0), most.get(dims, math.inf)) for dims in {**least, **most}}


def programs_of(sizing: Sizing, sizes: Mapping[Dim, Number]) -> int:
    """How many programs a launch at these sizes has."""
    programs = 1
    for dims, each in sizing.blocks:
        programs *= -(-_count(dims, sizes) // each)
    return programs


def _count(dims: Sequence[Dim], sizes: Mapping[Dim, Number]) -> int:
    count = 1
    for dim in dims:
        count *= sizes.get(dim, dim)
    return count


def _counter(dims: Sequence[Dim], sizes: Mapping[Dim, Any]) -> Callable[[Any], int]:
    """What gives the product of `dims`, where `sizes` may be functions."""
    parts = [sizes.get(dim, dim) for dim in dims]
    known = math.prod([part for part in parts if not callable(part)])
    found = [part for part in parts if callable(part)]
    if not found:
        return lambda given: known
    if len(found) == 1 and known == 1:
        return found[0]
    return lambda given: math.prod([part(given) for part in found], start=known)


def load_gpu(image: Image, device: str) -> LoadedGpu:
    """The kernels of `image` on `device`. Raises UserError if that is another architecture."""
    index = torch.device(device).index or 0
    here = architecture(device)
    if here != image.target.arch:
        raise UserError(f"the code was generated for {image.target.arch}, and {device} is {here}")
    made: list[Launch | None] = []
    modules: list[ctypes.c_void_p] = []
    with torch.cuda.device(index):
        bind_device()
        functions: dict[tuple[bytes, str], int] = {}  # kernels may differ in their numbers alone
        for binary in image.binaries:
            key = binary.code, binary.symbol
            if key not in functions:
                module, functions[key] = _loaded(binary)
                modules.append(module)
            made.append(_with_room(binary, _launch(functions[key], binary, index)))
    found: dict[str, list[tuple[Launch, Sizing | None]]] = {}
    for name, number in image.entries:
        launch = made[number]
        if launch is None:
            emit("tune", name=name, choice=_ALONE.format(name))
        else:
            found.setdefault(name, []).append((launch, image.binaries[number].sizing))
    return LoadedGpu(found, modules, None if image.host is None else load(image.host))


def _loaded(binary: Binary) -> tuple[ctypes.c_void_p, int]:
    """Its module, and its function in the memory of the device that is current."""
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    call("cuModuleLoadData", ctypes.byref(module), binary.code)
    call("cuModuleGetFunction", ctypes.byref(function), module, binary.symbol.encode())
    if binary.shared_bytes > _SHARED_LIMIT:
        call("cuFuncSetAttribute", function, ctypes.c_int(_MOST_SHARED),
             ctypes.c_int(binary.shared_bytes))
    return module, function.value


def _launch(function: int, binary: Binary, index: int) -> Launch:
    programs, words, memory_bytes = binary.programs, binary.scratch_words, 0
    if binary.is_persistent:
        programs = min(programs, _fact(_UNITS, index))
    if binary.memory_bytes:
        words, memory_bytes = words - 1, programs * binary.memory_bytes
    return Launch(
        function, programs, binary.threads, binary.shared_bytes, words, index, tuple(map(word_of, binary.numbers)),
        memory_bytes)


def _with_room(binary: Binary, launch: Launch) -> Launch | None:
    """The launch of as many programs as it may have, all at once where they wait for each other; None where these are
    too few."""
    if not binary.waiting:
        return launch
    count = ctypes.c_int()
    call("cuOccupancyMaxActiveBlocksPerMultiprocessor", ctypes.byref(count), ctypes.c_void_p(launch.function),
         ctypes.c_int(binary.threads), ctypes.c_size_t(binary.shared_bytes))
    units, is_possible = (_fact(which, launch.index) for which in (_UNITS, _COOPERATIVE))
    groups = count.value * units // binary.waiting
    if groups < max(1, binary.least_groups) or not is_possible:
        return None
    return replace(launch, programs=min(groups * binary.waiting, binary.programs), is_cooperative=True)


def _fact(which: int, index: int) -> int:
    """An attribute of device `index`."""
    device, value = ctypes.c_int(), ctypes.c_int()
    call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(index))
    call("cuDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(which), device)
    return value.value


@functools.cache
def driver() -> ctypes.CDLL:
    """The driver's library. Raises UserError where there is none."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise UserError(f"no CUDA driver: {error}") from error


def address(name: str) -> int:
    """Where the driver's function `name` begins; 0 if it has none."""
    function = getattr(driver(), name, None)
    return 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value or 0


def call(name: str, *arguments: object) -> None:
    """Calls the driver's function `name`. Raises InternalError with its error's name."""
    code = getattr(driver(), name)(*arguments)
    if code:
        text = ctypes.c_char_p()
        driver().cuGetErrorName(code, ctypes.byref(text))
        raise InternalError(f"{name} failed: {(text.value or b'').decode()} ({code})")


def bind_device() -> None:
    """Makes the primary context of torch's current device current in this thread: one that has
    only launched kernels has none."""
    torch.cuda.current_stream().query()


def run(launch: Launch, parameters: Sequence[ctypes.c_uint64 | ctypes.c_void_p]) -> None:
    """Launches on torch's current stream of the device. `parameters`: what holds each value, numbers included, and the address
    of the memory that it takes for itself, if any."""
    holders = [*parameters, *(ctypes.c_uint64(0) for _ in range(launch.words))]
    places = (ctypes.c_void_p * len(holders))(*map(ctypes.addressof, holders))
    stream = torch.cuda.current_stream(launch.index).cuda_stream
    what = (
        ctypes.c_void_p(launch.function), launch.programs, 1, 1, launch.threads, 1, 1, launch.shared_bytes,
        ctypes.c_void_p(stream), places)
    if launch.is_cooperative:
        call("cuLaunchCooperativeKernel", *what)
    else:
        call("cuLaunchKernel", *what, None)
