"""The runtime image: checker and driver, one piece of code for all programs of a machine.

    build_runtime(host_target())  ->  Image with the entries preheat_check and preheat_entry

It depends on nothing but the target and this package's version, so it is stored like any kernel.
"""

from preheat.generate.build import image
from preheat.generate.runtime_check import check_text
from preheat.generate.runtime_driver import driver_text
from preheat.ir.plan import Image, Target

ENTRIES = ("preheat_check", "preheat_entry")


def build_runtime(target: Target) -> Image:
    """The machine code of the checker and the driver for the CPU `target`."""
    return image(runtime_text(), target)


def runtime_text() -> str:
    """The LLVM IR text of the runtime."""
    return check_text() + driver_text()
