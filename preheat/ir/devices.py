"""GPUs by architecture: what the schedule and the generator may count on. A product is no row.

    device_of("sm_90").units   132

`units` is the number of multiprocessors of the largest product of the architecture: it decides into
how many programs work is cut, so a smaller product gets more of them than it needs, never fewer.
`cache_bytes` is the L2 of that product.
Source: CUDA C++ Programming Guide 13.0, technical specifications per compute capability.
"""

from typing import NamedTuple

from preheat.base.errors import UserError


class Device(NamedTuple):
    """warp: threads that run in step. most_warps: of one program. shared_bytes: of one program. tiles_ahead: of how many
    blocks of a product a copy engine has tiles on their way, 0 where there is none (`generate/interleaved.py`). Of sm_100 Triton 3.6
    makes an empty kernel for two."""

    maker: str  # how the compiler calls the platform
    warp: int
    most_warps: int
    units: int
    registers: int  # of one unit, 32 bits each
    shared_bytes: int
    cache_bytes: int
    tiles_ahead: int = 0


DEVICES: dict[str, Device] = {
    "sm_80": Device("cuda", 32, 32, 108, 65536, 163 << 10, 40 << 20),
    "sm_86": Device("cuda", 32, 32, 84, 65536, 99 << 10, 6 << 20),
    "sm_89": Device("cuda", 32, 32, 142, 65536, 99 << 10, 96 << 20),
    "sm_90": Device("cuda", 32, 32, 132, 65536, 227 << 10, 50 << 20, 2),
    "sm_100": Device("cuda", 32, 32, 148, 65536, 227 << 10, 126 << 20, 1),
    "sm_103": Device("cuda", 32, 32, 160, 65536, 227 << 10, 126 << 20, 1),
    "sm_120": Device("cuda", 32, 32, 188, 65536, 99 << 10, 128 << 20),
}


def device_of(arch: str) -> Device:
    """The facts of `arch`. Raises UserError for one without a row."""
    if arch not in DEVICES:
        known = ", ".join(DEVICES)
        raise UserError(f"no code generator for the GPU architecture {arch}; known: {known}")
    return DEVICES[arch]
