"""Plans: buffers and calls in order. What `schedule` decides and `run` does.

    plan (2 inputs, 1 output, arena 4096 bytes)
      b0 input 0   f32[8, 128]
      b1 input 1   f32[128]
      b2 arena 0   f32[8, 128]
      b3 output 0  f32[8]
      kernel mul_0 (b0, b1, b2) over 8
      ...

A plan knows no address. `Target` is the machine it is for, `Image` the machine code, `Artifact`
all that a second process needs.
"""

from typing import NamedTuple, Union

from preheat.base.dataclass import dataclass
from preheat.ir.graph import Arg
from preheat.ir.loop import Kernel
from preheat.ir.scalar import Dim, Number, Scalar
from preheat.ir.types import TensorType


@dataclass(frozen=True, slots=True)
class Target:
    """kind "cpu" or "cuda"; `features` decide vector width, never a CPU's name."""

    kind: str
    arch: str  # "x86_64", "aarch64", "sm_90"
    features: tuple[str, ...] = ()
    vector_bytes: int = 16
    compiler: str = ""  # versions of what generates the code

    @property
    def is_gpu(self) -> bool:
        return self.kind != "cpu"

    def elems(self, itemsize: int) -> int:
        return max(1, self.vector_bytes // itemsize)


class Rounding(NamedTuple):
    """Whether kernels may round float32 operands to tf32: of matrix products, and of convolutions."""

    products: bool = False
    convolutions: bool = False


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory of a tensor value. `type` gives sizes and the exact strides.

    kind "input"   the `index`-th input of the segment (may be written: an in-place write)
    kind "output"  a fresh tensor, the `index`-th result of the plan
    kind "arena"   at byte `index` of the arena that a call leases (64-byte aligned)
    kind "owned"   made by a library call, or for the call that first fills it; freed after its last use
    kind "view"    of buffer `base`, `index` elements further, with the type's sizes and strides
    """

    kind: str
    index: int
    type: TensorType
    base: int = -1


@dataclass(frozen=True, slots=True)
class KernelCall:
    """Runs kernel number `kernel` with one buffer a parameter over [0, `extent`).

    sizes   the expressions of the kernel (`loop.sizes_of`)
    """

    kernel: int
    buffers: tuple[int, ...]
    extent: Dim
    bytes: Dim = 0  # moved by one run, for the cost model and the report
    sizes: tuple[Number, ...] = ()


@dataclass(frozen=True, slots=True)
class ProductCall:
    """out[b, m, n] = sum_k a[b, m, k] * b[b, k, n] (+ beta * out), by the BLAS; on a GPU by the library, into memory
    that is there (`schedule/interleave.py`).

    Strides of a, b and out are those of their buffers' types (the last two axes are the matrix);
    each matrix has one unit stride. Batch axes are flattened to `batch`, with one stride an operand.
    """

    a: int
    b: int
    out: int
    beta: int = 0


@dataclass(frozen=True, slots=True)
class LibraryCall:
    """The ATen overload `op` on `args` and `attrs`, in which `Ref(k)` means buffer k.

    results   buffers of kind "owned" or "output"; -1 for one that is not needed
    """

    op: str
    args: tuple[Arg, ...]
    attrs: tuple[tuple[str, Arg], ...]
    results: tuple[int, ...]


Call = Union[KernelCall, ProductCall, LibraryCall]


@dataclass(frozen=True, slots=True)
class Output:
    """A result of the plan: `buffer`, or, when `alias` is set, a view made on a live tensor.

    alias "input"   of input `base`;  alias "output"   of result `base`
    `offset` is in elements from the base's *storage start* for inputs relative to the base's own
    first element; sizes and strides are `type`'s. `is_detached`: see `graph.OutputAlias`.
    """

    type: TensorType
    buffer: int = -1
    alias: str = ""
    base: int = -1
    offset: Dim = 0
    is_detached: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """A *template* where sizes are expressions: a plan for all values of `symbols` for which each of
    the `conditions` holds (`ir.sized.at` gives the one for some). Where one of the `preferences` does not hold, a
    template that is made from such sizes is much faster. Of a plan for single sizes all are empty.
    """

    inputs: tuple[TensorType, ...]
    buffers: tuple[Buffer, ...]
    kernels: tuple[Kernel, ...]
    calls: tuple[Call, ...]
    outputs: tuple[Output, ...]
    arena_bytes: Dim = 0
    symbols: tuple[str, ...] = ()
    conditions: tuple[Scalar, ...] = ()
    preferences: tuple[Scalar, ...] = ()


@dataclass(frozen=True, slots=True)
class Sizing:
    """Which sizes the binary of a kernel that takes sizes is for, and of how many programs a launch is.

    Pairs of extents (numbers, or expressions of the kernel) and a count; p: the product of the extents.
    blocks     the programs are the product of all ceil(p / count)
    most       each p is at most its count
    multiples  each p is a multiple of its count
    least      each p is at least its count
    """

    blocks: tuple[tuple[tuple[Dim, ...], int], ...]
    most: tuple[tuple[tuple[Dim, ...], int], ...] = ()
    multiples: tuple[tuple[tuple[Dim, ...], int], ...] = ()
    least: tuple[tuple[tuple[Dim, ...], int], ...] = ()


@dataclass(frozen=True, slots=True)
class Binary:
    """One kernel of a GPU as its driver loads it: `code` is a cubin, `symbol` its function.

    A launch has `programs` blocks of `threads` threads, each with `shared_bytes` of shared memory.
    It takes one word a parameter of the kernel, one a size (`loop.sizes_of`), the `numbers`, then `scratch_words` words
    that are 0; where each program has `memory_bytes` of the GPU's memory for itself, the first of these is its address. A kernel
    that takes sizes has a `sizing`, which says how many programs there are, unless that is known. Those of one that
    `is_persistent` do one block after another: there are no more than multiprocessors.
    waiting: programs that wait for each other, if any. All of a launch run at once then: it has as many times that number as
    find room on the device, `programs` at the most; where that is less than `least_groups` times, it is not for that device.
    """

    code: bytes
    symbol: str
    programs: int
    threads: int
    shared_bytes: int
    scratch_words: int
    sizing: Sizing | None = None
    numbers: tuple[Number, ...] = ()
    memory_bytes: int = 0
    is_persistent: bool = False
    waiting: int = 0
    least_groups: int = 0


@dataclass(frozen=True, slots=True)
class Image:
    """Machine code that knows no address.

    On a CPU `code` is one flat, position-independent block without imports, `entries` where each
    kernel begins. On a GPU `entries` number the kernels in `binaries`; one that takes sizes may have
    several entries, of which the first that is for the sizes of a call is launched, and one whose programs wait for
    each other has a second, for devices that have no room for them. `host`: of the
    kernels of such a plan that run on the host.
    """

    code: bytes
    entries: tuple[tuple[str, int], ...]
    target: Target
    binaries: tuple[Binary, ...] = ()
    host: "Image | None" = None
