"""What things cost: cycles of an op on a vector, bytes of a nest, and the limits that follow.

Cycles are reciprocal throughputs of one 512-bit f32 vector, rounded: adds and multiplies from
Agner Fog's instruction tables (Ice Lake, Sapphire Rapids), math functions from our own polynomials
(research/cpu.md, K2: 0.25 ns an exp element at 16 lanes is about 10 cycles a vector). Only ratios
matter: they decide what is computed again and what is kept.
"""

from preheat.ir.hinted import estimate
from preheat.ir.plan import Target
from preheat.ir.scalar import Dim

OP_CYCLES: dict[str, float] = {
    **dict.fromkeys("div sqrt".split(), 8.0),
    **dict.fromkeys("rsqrt reciprocal".split(), 10.0),
    **dict.fromkeys("exp exp2 sigmoid".split(), 10.0),
    **dict.fromkeys("expm1 log log2 log10 log1p erf tanh sin cos atan".split(), 16.0),
    **dict.fromkeys("erfc tan asin acos atan2 sinh cosh asinh acosh atanh pow".split(), 30.0),
    **dict.fromkeys("floordiv truncdiv remainder fmod".split(), 20.0),
    "uniform": 25.0,
    **dict.fromkeys("const axis".split(), 0.0),
}
SIMPLE_CYCLES = 0.5  # everything else that computes
LOAD_CYCLES = 1.0  # consecutive or broadcast elements in a near cache
GATHER_CYCLES = 8.0  # 16 lanes from 16 places
KEEP_CYCLES = 2.0  # a store and a load of a kept value

KEEP_BYTES = 64 * 1024  # kept rows of one kernel: within L2, and a thread's stack can hold them
CACHE_BYTES = 512 * 1024  # a row up to this is still cached when a later stage loads it again
CHEAP_CYCLES = 4.0  # a value of this much arithmetic is computed again rather than stored
EXPENSIVE_CYCLES = 8.0  # from here on, never once more for each repeated element
MOST_PARAMS = 24  # pointers that fit the registers and the stack of a kernel without thrashing
LONE_CYCLE_BYTES = 32  # a cycle of a vector's work spent on one value: 0.5 ns, twice to be sure
LAUNCH_BYTES = 16 * 1024  # a call costs about as much as moving this much (0.5 us at 30 GB/s)
GPU_LAUNCH_BYTES = 4 << 20  # the same of a GPU: 1 us between kernels of a graph, at 4 TB/s
GPU_ROW_ELEMS = 32768  # rows up to this stay in the registers of one program (research/gpu.md)
FOLDED_ELEMS = 8192  # columns whose sums a program holds while it walks down rows
LEAST_FOLDING = 64  # programs that do so
GPU_FEW_PROGRAMS = 264  # below this, multiprocessors stand idle: two for each of an H200


def launch_bytes(target: Target) -> int:
    """What a kernel costs besides its work, in bytes moved in that time."""
    return GPU_LAUNCH_BYTES if target.is_gpu else LAUNCH_BYTES


def op_cycles(name: str) -> float:
    """Cycles of elementwise op `name` on one vector."""
    return OP_CYCLES.get(name, SIMPLE_CYCLES)


def load_cycles(stride: Dim) -> float:
    """Cycles of a vector load whose neighbours are `stride` elements apart."""
    return LOAD_CYCLES if stride in (0, 1) else GATHER_CYCLES


def padding(extent: Dim, lanes: int) -> float:
    """How much work a vector axis of `extent` wastes in its tail: 1.0 for none."""
    extent = estimate(extent)
    return -(-extent // lanes) * lanes / extent if extent else 1.0


def access_penalty(stride: Dim) -> float:
    """The cost of an access with neighbours `stride` apart, relative to consecutive elements."""
    if stride == 1:
        return 1.0
    return 0.25 if stride == 0 else GATHER_CYCLES
