"""CPU features that generated code may use: LLVM's name of each, and Linux's.

    FEATURES["x86_64"]["sse4.1"] == "sse4_1"        (+sse4.1 for LLVM, sse4_1 in /proc/cpuinfo)

Only what changes code that we generate is listed: the fewer features an image asks for, the more
machines it runs on. `vector_bytes` follows from features, never from a CPU's name (names are
misdetected in virtual machines: research/cpu.md, K6).
"""

FEATURES: dict[str, dict[str, str]] = {
    "x86_64": {
        "sse3": "pni", "ssse3": "ssse3", "sse4.1": "sse4_1", "sse4.2": "sse4_2", "popcnt": "popcnt",
        "avx": "avx", "avx2": "avx2", "fma": "fma", "f16c": "f16c", "bmi": "bmi1", "bmi2": "bmi2",
        "lzcnt": "abm", "movbe": "movbe", "avx512f": "avx512f", "avx512cd": "avx512cd",
        "avx512bw": "avx512bw", "avx512dq": "avx512dq", "avx512vl": "avx512vl",
    },
    "aarch64": {"fp-armv8": "fp", "neon": "asimd", "lse": "atomics", "fullfp16": "asimdhp"},
}
# Every CPU of the architecture has these.
BASELINE: dict[str, tuple[str, ...]] = {"x86_64": (), "aarch64": ("fp-armv8", "neon")}


def vector_bytes(features) -> int:
    """The width of one vector register that `features` promise, in bytes."""
    if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= set(features):
        return 64
    if {"avx2", "fma"} <= set(features):
        return 32
    return 16
