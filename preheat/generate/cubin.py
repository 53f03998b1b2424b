"""Triton source to binaries for a GPU, which need not be there. The only door to Triton.

    build_gpu((softmax_0,), gpu_target("sm_90"))
        -> Image with one Binary: a cubin, 32768 programs of 128 threads

What a driver loads is a cubin, not PTX: the PTX of a newer Triton is refused by older drivers
(research/gpu.md, G6). Kernels that are equal but for the name are compiled once. libdevice keeps
denormals, as eager's kernels do.
"""

import functools
import importlib
import linecache
import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from preheat.base.errors import InternalError, UserError
from preheat.base.events import emit, wants
from preheat.generate.tiles import Tile
from preheat.generate.triton import ALIGN_BYTES, Source
from preheat.generate.variants import sources_of
from preheat.ir.devices import device_of
from preheat.ir.loop import Kernel
from preheat.ir.pack import digest
from preheat.ir.plan import Binary, Image, Target

MOST_THREADS = 8


@functools.cache
def gpu_target(arch: str) -> Target:
    """The GPU architecture `arch` ("sm_90"). Raises UserError without Triton or without a row."""
    device = device_of(arch)
    return Target(device.maker, arch, (), ALIGN_BYTES, f"triton {_triton().__version__}")


def build_gpu(
    kernels: Sequence[Kernel], target: Target, tiles: Mapping[str, Tile] = MappingProxyType({}),
) -> Image:
    """The binaries of `kernels`, one entry a name, or several where sizes are arguments.

    tiles   by `kernel_key`, those that are not the rules' own
    Raises InternalError for a kernel that Triton refuses.
    """
    numbers: dict[str, range] = {}
    entries: list[tuple[str, int]] = []
    sources: list[Source] = []
    for kernel in kernels:
        key = kernel_key(kernel)
        if key not in numbers:
            first = len(sources)
            sources += sources_of(kernel, target, tiles.get(key))
            numbers[key] = range(first, len(sources))
        entries += [(kernel.name, number) for number in numbers[key]]
    if wants("stage"):
        for source in sources:
            emit("stage", name="triton", text=source.text)
    return Image(b"", tuple(entries), target, tuple(_binaries(sources, target)))


def _binaries(sources: Sequence[Source], target: Target) -> list[Binary]:
    """Side by side: most of a kernel's time goes by in LLVM and in ptxas, which leave Python alone."""
    count = min(len(sources), MOST_THREADS, os.cpu_count() or 1)
    if count < 2:
        return [binary(source, target) for source in sources]
    _triton()  # not from several threads at once
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(lambda source: binary(source, target), sources))


def kernel_key(kernel: Kernel) -> str:
    """What kernels have in common that are equal but for the name."""
    return digest(replace(kernel, name=""))


def binary(source: Source, target: Target) -> Binary:
    """The kernel of `source`, compiled. Threads may call at once."""
    made = compile_source(source, target)
    parameters = len(re.findall(r"\.param", made.asm["ptx"].split(".entry", 1)[1].split(")", 1)[0]))
    if made.metadata.global_scratch_size:
        raise InternalError(f"{source.name} wants scratch memory, which the launch does not give")
    return Binary(
        made.asm["cubin"], made.metadata.name, source.tile.programs if source.sizing is None else 0,
        source.tile.warps * device_of(target.arch).warp, made.metadata.shared,
        parameters - len(source.signature), source.sizing,
    )


def compile_source(source: Source, target: Target) -> Any:
    """Triton's compiled kernel, with all its stages. Raises InternalError if Triton refuses."""
    triton, function = _triton(), jit_function(source)
    multiples = {
        (k,): [["tt.divisibility", number]] for k, number in enumerate(source.multiples) if number > 1}
    signature = dict(zip(function.arg_names, source.signature, strict=True))
    compiler = importlib.import_module("triton.compiler")
    gpu = compiler.GPUTarget if hasattr(compiler, "GPUTarget") else (
        importlib.import_module("triton.backends.compiler").GPUTarget)
    options = {
        "num_warps": source.tile.warps, "debug": source.has_check, "sanitize_overflow": False,
        "enable_reflect_ftz": False,
    }
    if source.tile.stages:
        options["num_stages"] = source.tile.stages
    device = device_of(target.arch)
    try:
        return triton.compile(
            compiler.ASTSource(function, signature, {}, multiples),
            target=gpu(device.maker, int(target.arch.removeprefix("sm_")), device.warp),
            options=options,
        )
    except Exception as error:
        raise InternalError(f"Triton refused the kernel {source.name}: {error}") from error


def jit_function(source: Source) -> Any:
    """The kernel as Triton's function object; Triton reads its text by the file name."""
    file = f"<preheat kernel {source.name} {digest(source.text)}>"
    linecache.cache[file] = (len(source.text), None, source.text.splitlines(True), file)
    names: dict[str, Any] = {"__name__": "preheat.kernels"}
    exec(compile(source.text, file, "exec"), names)  # noqa: S102 - our own text
    return names[source.name]


@functools.cache
def _triton() -> Any:
    try:
        return importlib.import_module("triton")
    except ImportError as error:
        why = f"kernels for a GPU are generated by triton, which is not here: {error}"
        raise UserError(why) from error
