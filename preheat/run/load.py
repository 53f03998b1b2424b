"""Images to callable addresses: one mapping, no linker, no compiler.

    load(image).address("softmax_0") -> 0x7f...1240     (void (ptr args, i64 begin, i64 end))

The code of an image is flat and position-independent, so it is copied to fresh pages that then turn
from writable to executable (never both at once). Requires: the running CPU has every feature of
the image's target; otherwise a UserError names the missing ones. The mapping lives as long as the
`Loaded` object: keep it while an address of it may be called.
"""

import ctypes
import functools
import mmap
import platform
from collections.abc import Mapping
from pathlib import Path

from preheat.base.errors import InternalError, UserError, nearest
from preheat.ir.features import BASELINE, FEATURES
from preheat.ir.plan import Image, Target

_ARCH = {"x86_64": "x86_64", "AMD64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
_CPUINFO = Path("/proc/cpuinfo")


class Loaded:
    """Machine code in memory. `address(name)` is where entry `name` begins."""

    def __init__(self, pages: mmap.mmap, base: int, entries: Mapping[str, int]):
        self._pages, self._base, self._entries = pages, base, entries

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._entries)

    def address(self, name: str) -> int:
        """The absolute address of entry `name`. Raises InternalError for an unknown name."""
        if self._base == 0:
            raise InternalError(f"the image of {name!r} is closed")
        if name not in self._entries:
            raise InternalError(f"no entry {name!r} in the image; {nearest(name, self._entries)}")
        return self._base + self._entries[name]

    def close(self) -> None:
        """Unmaps the code; no address of it may be called afterwards."""
        self._base = 0
        self._pages.close()


def load(image: Image) -> Loaded:
    """`image` mapped and ready to call. Raises UserError if this CPU cannot run it."""
    missing = missing_features(image.target)
    if missing:
        raise UserError(
            f"the code was generated for {image.target.arch} with {', '.join(missing)}, which this "
            f"CPU ({platform.machine()}) lacks; generate it again here, or for a target without them"
        )
    size = max(len(image.code), 1)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages.write(image.code)
    base = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    if _mprotect()(base, size, mmap.PROT_READ | mmap.PROT_EXEC):
        raise InternalError(f"the system refuses executable memory (errno {ctypes.get_errno()})")
    return Loaded(pages, base, dict(image.entries))


def machine_name() -> str:
    """This machine as generated code sees it: architecture and the features that matter."""
    arch = _ARCH.get(platform.machine(), platform.machine())
    return " ".join((arch, *sorted(running_features())))


def missing_features(target: Target) -> tuple[str, ...]:
    """What `target` needs and the running CPU lacks: () if code for it can run here."""
    if target.arch != _ARCH.get(platform.machine()):
        return (target.arch,)
    return tuple(name for name in target.features if name not in running_features())


@functools.cache
def running_features() -> frozenset[str]:
    """LLVM's names of the features that this CPU and kernel offer."""
    arch = _ARCH.get(platform.machine(), "")
    return frozenset(_features_of(arch, _CPUINFO.read_text() if _CPUINFO.exists() else ""))


def _features_of(arch: str, cpuinfo: str) -> set[str]:
    """The features that the text of /proc/cpuinfo lists; without one, only the architecture's
    own."""
    line = next((x for x in cpuinfo.splitlines() if x.startswith(("flags", "Features"))), "")
    flags = set(line.partition(":")[2].split())
    listed = {name for name, flag in FEATURES.get(arch, {}).items() if flag in flags}
    return listed | set(BASELINE.get(arch, ()))


@functools.cache
def _mprotect():
    function = ctypes.CDLL(None, use_errno=True).mprotect
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function
