"""What a kernel of Triton is before it is compiled: its text, and how it is compiled and launched."""

from collections.abc import Sequence

from preheat.base.dataclass import dataclass
from preheat.generate import triton_ops as ops
from preheat.generate.tiles import Tile
from preheat.ir.plan import Sizing

ALIGN_BYTES = 16  # of every pointer that a kernel gets; run/ sees to it
HEAD = """import triton
import triton.language as tl
from triton.language.extra import libdevice

"""


@dataclass(frozen=True, slots=True)
class Source:
    """The text of one kernel, and how it is compiled and launched.

    signature   Triton's type of each parameter; has_check: it asserts
    is_fused    a product and a sum are one instruction; `mul_rn` of libdevice is rounded even so
    multiples   what each parameter is a multiple of, 1 where that is not known; of a pointer, in bytes
    sizing      of a kernel that takes sizes
    """

    name: str
    text: str
    signature: tuple[str, ...]
    tile: Tile
    has_check: bool
    is_fused: bool
    multiples: tuple[int, ...]
    sizing: Sizing | None = None


def text_of(name: str, parameters: Sequence[str], lines: Sequence[str], functions: Sequence[str] = ()) -> str:
    """The module that is kernel `name`, whose body is `lines`; functions: that it calls."""
    body = "\n".join([*functions, f"\n\n@triton.jit\ndef {name}({', '.join(parameters)}):", *lines])
    return f"{HEAD}{ops.helpers_of(body)}{body}\n"
