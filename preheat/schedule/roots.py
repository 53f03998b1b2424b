"""Roots: the values that begin as kernels of their own, and what is computed again instead.

    h = x + y; m = mean(h); out = (h - m) * w       h has one use more than m: reading x and y twice moves more bytes
      roots h, m, out

A value that several roots use is computed again where that moves no more bytes than loading it and is little
arithmetic; else it is a root, in its narrowest form. Requires level core.
"""

from collections.abc import Iterable, Mapping

from preheat.base.dataclass import dataclass
from preheat.ir.hinted import estimate
from preheat.ir.ops import CORE, REDUCE
from preheat.ir.scalar import product
from preheat.ir.types import TensorType
from preheat.rules.algebra import widens
from preheat.schedule import cost
from preheat.schedule.problem import Problem

MOST_DEPTH = 60


def roots_of(problem: Problem, extra: Iterable[int] = ()) -> tuple[int, ...]:
    """The values that begin as kernels of their own, in program order."""
    fixed = {*problem.required, *extra}
    fixed |= {v for v, op in problem.ops.items() if op.name in REDUCE}
    fixed = {v for v in fixed if not problem.is_given(v)}
    shared = _shared(problem, fixed)
    return _settle(problem, fixed, shared)


def _shared(problem: Problem, fixed: set[int]) -> dict[int, bool]:
    """The values that more than one root uses or one root at several positions, and all live ones.

    True for the shared ones; values that nothing uses are absent.
    """
    users: dict[int, set[int]] = {v: {v} for v in fixed}
    moves: dict[int, int] = {}
    shared: dict[int, bool] = {}
    for value in sorted(problem.ops, key=problem.order.__getitem__, reverse=True):
        if problem.is_given(value) or value not in users:
            continue
        shared[value] = value not in fixed and (len(users[value]) > 1 or moves.get(value, 0) > 1)
        here = {value} if value in fixed or shared[value] else users[value]
        op = problem.ops[value]
        for arg in problem.operands(value):
            users.setdefault(arg, set()).update(here)
            moves[arg] = moves.get(arg, 0) + (op.name in _SHIFTS)
    return shared


_SHIFTS = ("slice", "window", "flip", "pad", "cat", "place")


@dataclass(frozen=True, slots=True)
class _Work:
    """What computing a value again takes: cycles a vector, memory read, depth of the expression."""

    cycles: float = 0.0
    reads: frozenset[int] = frozenset()
    depth: int = 0


def _settle(problem: Problem, fixed: set[int], shared: Mapping[int, bool]) -> tuple[int, ...]:
    """Decides for each shared value, operands first, whether it is computed again or a root."""
    roots = set(fixed)
    work: dict[int, _Work] = {
        v: _Work(0.0, frozenset({v})) for v in (*problem.inputs, *problem.results)
    }
    for value in sorted(shared, key=problem.order.__getitem__):
        op, operands = problem.ops[value], problem.operands(value)
        for arg in operands:
            if work[arg].cycles >= cost.EXPENSIVE_CYCLES and _repeats(problem, value, arg):
                root = computed(problem, arg)
                roots.add(root)
                work[arg] = _Work(0.0, frozenset({root}))
        args = [work[a] for a in operands]
        here = cost.op_cycles(op.name) if CORE[op.name].kind in ("elementwise", "gather") else 0.0
        found = _Work(
            here + sum(a.cycles for a in args),
            frozenset().union(*(a.reads for a in args)),
            1 + max((a.depth for a in args), default=0),
        )
        if (
            value in fixed
            or found.depth > MOST_DEPTH
            or (shared[value] and not _is_cheap(problem, value, found))
        ):
            narrow = value if value in fixed else _narrow(problem, value)
            roots.add(narrow)
            found = work[narrow] = _Work(0.0, frozenset({narrow}))
        work[value] = found
    return tuple(sorted(roots, key=problem.order.__getitem__))


def _is_cheap(problem: Problem, value: int, work: _Work) -> bool:
    """Computing `value` again moves no more bytes than loading it, and little arithmetic."""
    read = sum(memory_bytes(problem.types[v]) for v in work.reads)
    return work.cycles <= cost.CHEAP_CYCLES and read <= memory_bytes(problem.types[value])


def _narrow(problem: Problem, value: int) -> int:
    """`value`, or what it is the exact widening of: the same elements in fewer bytes."""
    op = problem.ops[value]
    if op.name != "cast" or problem.is_given(op.args[0].id):
        return value
    wide, narrow = op.type, problem.types[op.args[0].id]
    return op.args[0].id if widens(narrow.dtype, wide.dtype) and narrow.itemsize < wide.itemsize else value


def _repeats(problem: Problem, value: int, arg: int) -> bool:
    """Op `value` reads elements of `arg` more than once each."""
    if CORE[problem.ops[value].name].kind not in ("movement", "gather"):
        return False
    return estimate(problem.types[value].elems) > estimate(problem.types[arg].elems)


def computed(problem: Problem, value: int) -> int:
    """The value whose elements `value` moves."""
    while not problem.is_given(value) and problem.ops[value].name in (
        "reshape",
        "permute",
        "expand",
        "slice",
        "flip",
    ):
        value = problem.ops[value].args[0].id
    return value


def memory_bytes(type: TensorType) -> int:
    """The memory of a value: repeated elements count once."""
    sizes = tuple(n for n, s in zip(type.sizes, type.strides) if s != 0)
    return estimate(product(sizes)) * type.itemsize
