"""Names of kernels that a person recognises in a profile: what it computes, then its number.

    max sub exp sum div             softmax
    add sum mul sub ... rsqrt       add_layer_norm
    mul mul erf add mul             gelu

A row of `IDIOMS` stands for the ops that it takes together; what is left is named op by op, without
the arithmetic that any kernel has. Names carry no meaning: equal kernels are found by digest.
"""

from collections.abc import Collection

from preheat.schedule.groups import Group
from preheat.schedule.problem import Problem

MOST_WORDS = 4
# (ops that must be there, the name, ops that it accounts for), the more specific first
IDIOMS: tuple[tuple[frozenset[str], str, frozenset[str]], ...] = tuple(
    (frozenset(needs.split()), name, frozenset(f"{needs} {covers}".split()))
    for needs, name, covers in (
        ("max exp sum log", "log_softmax", "sub"),
        ("max exp sum", "softmax", "sub div mul reciprocal"),
        ("sum rsqrt sub", "layer_norm", "mul div add abs le"),
        ("sum rsqrt", "rms_norm", "mul div add"),
        ("erf", "gelu", "mul add"),
        ("tanh mul add", "gelu_tanh", "pow"),
        ("sigmoid mul", "silu", ""),
        ("maximum full", "relu", ""),
        ("take", "embedding", "lt where"),
    )
)
PLAIN = frozenset("full iota cast reshape permute expand slice flip".split())
ARITHMETIC = frozenset("add sub mul times div neg where".split())


def kernel_name(group: Group, problem: Problem, products: Collection[int] = ()) -> str:
    """The name of the group's kernel, without its number. products: sums that multiply matrices."""
    values = sorted(group.values, key=problem.order.__getitem__)
    total = next((v for v in values if v in products), None)
    values = [v for v in values if total is None or v not in (total, problem.ops[total].args[0].id)]
    found = list(dict.fromkeys(problem.ops[v].name for v in values))
    left = set(found)
    words: list[tuple[int, str]] = [] if total is None else [(-1, "product")]
    if total is not None and "window" in left:
        words, left = [(-1, "convolution")], left - {"window", "pad"}
    for needs, name, covers in IDIOMS:
        if needs <= left:
            words.append((min(found.index(op) for op in needs), name))
            left -= covers
    rest = [(place, name) for place, name in enumerate(found) if name in left and name not in PLAIN]
    telling = [word for word in rest if word[1] not in ARITHMETIC]
    words += telling or ([] if words else rest)
    return "_".join(name for _, name in sorted(words)[:MOST_WORDS]) or "copy"
