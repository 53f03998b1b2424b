"""Triton source to binaries for a GPU, which need not be there.

    build_gpu((softmax_0,), gpu_target("sm_90"))
        -> Image with one Binary: a cubin, 32768 programs of 128 threads

What a driver loads is a cubin, not PTX: the PTX of a newer Triton is refused by older drivers
(research/gpu.md, G6). Kernels whose texts are equal but for the name are compiled once, all of an image side by
side (`workers`). libdevice keeps denormals, as eager's kernels do.
"""

import functools
import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from preheat.base.errors import UserError
from preheat.base.events import emit, wants
from preheat.generate.build import build, cpu_target, host_target
from preheat.generate.shared import Numbers, shared
from preheat.generate.tiles import Tile
from preheat.generate.sources import ALIGN_BYTES, Source
from preheat.generate.triton_worker import Job, Made
from preheat.generate.variants import sources_of
from preheat.generate.workers import WORKERS
from preheat.ir.devices import DEVICES, device_of
from preheat.ir.loop import TABLE, Kernel, is_for_any, is_on_host
from preheat.ir.pack import digest
from preheat.ir.plan import Binary, Image, Target

Asked = dict[tuple, "Future[Made]"]  # by content, what is being compiled
Known = dict[tuple[str, Tile | None], tuple[Binary, ...]]  # by `kernel_key` and tile, None for the rules' own
# Groups of programs that wait for each other, by whether they store a row behind the next one's words: else with one or two all
# of the device would wait at once.
LEAST_GROUPS = (3, 1)


@functools.cache
def gpu_target(arch: str) -> Target:
    """The GPU architecture `arch` ("sm_90"). Raises UserError without Triton or without a row."""
    device = device_of(arch)
    return Target(device.maker, arch, (), ALIGN_BYTES, f"triton {_version()}")


def prepare(arch: str) -> None:
    """Begins what compiles kernels for `arch`, if that is in other processes."""
    device = DEVICES.get(arch)
    if device is not None:
        WORKERS.start(device.maker, number_of(arch), device.warp)


def build_gpu(
    kernels: Sequence[Kernel], target: Target, tiles: Mapping[str, Tile] = MappingProxyType({}),
    known: Known | None = None,
) -> Image:
    """The binaries of `kernels`, one entry a name, or several where sizes are arguments.

    tiles   by `kernel_key`, those that are not the rules' own
    known   what has been compiled before; what is new is added
    Raises InternalError for a kernel that Triton refuses.
    """
    return begin_gpu(kernels, target, tiles, known)()


def begin_gpu(
    kernels: Sequence[Kernel], target: Target, tiles: Mapping[str, Tile] = MappingProxyType({}),
    known: Known | None = None, asked: Asked | None = None,
) -> Callable[[], Image]:
    """What waits for the image that `build_gpu` gives. Its kernels are compiled meanwhile, the longest first:
    it is what the last one waits for. asked: those of other images, for texts that they share."""
    is_alone = known is None  # each kernel is measured for itself where there is a search
    known, asked = {} if known is None else known, {} if asked is None else asked
    of_host = [kernel for kernel in kernels if is_on_host(kernel)]
    kernels = [kernel for kernel in kernels if not is_on_host(kernel)]
    keys = [kernel_key(kernel) for kernel in kernels]
    found = {(key, tiles.get(key)): kernel for key, kernel in zip(keys, kernels)}
    is_told = wants("stage")
    texts = {
        place: sources_of(kernel, target, place[1]) for place, kernel in found.items()
        if is_told or place not in known}
    places = [(place, number) for place, sources in texts.items() for number in range(len(sources))]
    sources = dict(zip(places, (shared if is_alone else _apart)([s for some in texts.values() for s in some])))
    for source in dict.fromkeys(source for source, _ in sources.values() if is_told):
        emit("stage", name="triton", text=source.text)
    answers = {}
    for row, (source, _) in sorted(sources.items(), key=lambda row: -len(row[1][0].text)):
        content = target.arch, _content(source)
        if row[0] not in known and content not in asked:
            asked[content] = WORKERS.submit(job_of(source, target))
        answers[row] = asked.get(content)

    def image() -> Image:
        for place in dict.fromkeys(place for place, _ in sources if place not in known):
            known[place] = tuple(
                _binary(*sources[place, number], target, answers[place, number].result())
                for number in range(len(texts[place])))
        binaries: list[Binary] = []
        numbers: dict[str, range] = {}
        for place in found:
            numbers[place[0]] = range(len(binaries), len(binaries) + len(known[place]))
            binaries += known[place]
        entries = [
            (f"{kernel.name}{TABLE}" if is_for_any(kernel) and k else kernel.name, number)
            for key, kernel in zip(keys, kernels) for k, number in enumerate(numbers[key])]
        # without features: an image for a GPU may come from another machine
        host = build(of_host, cpu_target(host_target().arch, ())) if of_host else None
        return Image(b"", tuple(entries), target, tuple(binaries), host)

    return image


def kernel_key(kernel: Kernel) -> str:
    """What kernels have in common that are equal but for the name."""
    return digest(replace(kernel, name=""))


def _content(source: Source) -> tuple:
    """What Triton makes of a source, the name apart: rows of any number that programs share out are one text."""
    text = source.text.replace(f"def {source.name}(", "def kernel(")
    return (text, source.signature, source.multiples, source.tile.warps, source.tile.stages, source.has_check,
            source.is_fused, source.tile.registers)


def binary(source: Source, target: Target) -> Binary:
    """The kernel of `source`, compiled. Threads may call at once. Raises InternalError if Triton refuses."""
    return _binary(source, (), target, WORKERS.submit(job_of(source, target)).result())


def _apart(sources: Sequence[Source]) -> list[tuple[Source, Numbers]]:
    """Sources that share nothing."""
    return [(source, ()) for source in sources]


def _binary(source: Source, numbers: Numbers, target: Target, made: Made) -> Binary:
    device, tile = device_of(target.arch), source.tile
    programs = 0 if source.sizing is not None else tile.programs
    if tile.is_interleaved:
        programs = device.units if source.sizing is not None else min(programs, device.units)
    return Binary(
        made.cubin, made.name, programs, tile.warps * device.warp, made.shared_bytes,
        made.parameters - len(source.signature), source.sizing, numbers, made.scratch_bytes, tile.is_interleaved,
        tile.parts, LEAST_GROUPS[tile.is_behind] if tile.parts else 0)


def job_of(source: Source, target: Target) -> Job:
    """What Triton is asked for `source`."""
    device = device_of(target.arch)
    return Job(
        source.name, source.text, f"<preheat kernel {source.name} {digest(source.text)}>",
        source.signature, source.multiples, source.tile.warps, source.tile.stages or 0, source.has_check,
        source.is_fused, device.maker, number_of(target.arch), device.warp, source.tile.registers)


def number_of(arch: str) -> int:
    """90 of "sm_90"."""
    return int(arch.removeprefix("sm_"))


@functools.cache
def _version() -> str:
    """Triton's. Its import, which costs 0.1 to 0.4 s and is not needed here, is left to who compiles."""
    try:
        place = importlib.util.find_spec("triton")
        text = Path(place.origin).read_text(encoding="utf-8") if place and place.origin else ""
        found = re.search(r"""^__version__ = ['"](.+)['"]""", text, re.M)
        return found[1] if found else importlib.import_module("triton").__version__
    except (ImportError, ValueError) as error:
        why = f"kernels for a GPU are generated by triton, which is not here: {error}"
        raise UserError(why) from error
