"""Cleanup: a shorter graph of the same meaning, by rules, sharing and removal of dead ops.

    %2: f32[8] = cast(%0: bf16[8], dtype='float32')
    %3: f32[8] = mul(%2, full(1.0))
    %4: bf16[8] = cast(%3, dtype='bfloat16')
    return %4
      ->
    return %0's copy

Requires and gives level core. Guarantees what `rules.engine` guarantees; ops that draw random
numbers or write unseen stay, in order; ops that can raise stay even when nothing reads them, because eager would
raise.
"""

from preheat.bridge.ops import HIDDEN_WRITES, draws, schema
from preheat.ir.graph import Graph, Op, Ref, map_refs, with_ops
from preheat.rules import algebra, movement, one_hot
from preheat.rules.engine import rewrite
from preheat.rules.raising import can_raise

RULES = (*algebra.RULES, *movement.RULES, *one_hot.RULES)


def cleanup(graph: Graph) -> Graph:
    """`graph`, simplified."""
    return renumber(remove_dead(rewrite(graph, RULES, is_shared=_is_deterministic)))


def has_effect(op: Op) -> bool:
    """Whether `op` draws from a generator or writes what nothing says: it runs once, in order."""
    if op.name != "library" or not schema(op.attr("op")).has_effect:
        return False
    name = op.attr("op")
    attrs = tuple((key, arg) for key, arg in op.attrs if key != "op")
    return name in HIDDEN_WRITES or draws(name, op.args, attrs)


def _is_deterministic(op: Op) -> bool:
    """Whether two such calls on equal operands may be one: not for operators of users."""
    return op.attr("op").startswith("aten.") and not has_effect(op)


def remove_dead(graph: Graph) -> Graph:
    """`graph` without ops whose results nobody reads, as far as their absence cannot be seen."""
    live = {*graph.outputs, *(value for _, value in graph.writes)}
    kept: list[Op] = []
    for op in reversed(graph.ops):
        if live.isdisjoint(op.results) and not has_effect(op) and not can_raise(op):
            continue
        live.update(op.refs())
        kept.append(op)
    return with_ops(graph, reversed(kept))


def renumber(graph: Graph) -> Graph:
    """`graph` with values numbered in order: inputs, then results. Before `reinplace`."""
    number: dict[int, int] = {-1: -1}
    for input in graph.inputs:
        number[input.id] = len(number) - 1
    for op in graph.ops:
        for result in op.results:
            number.setdefault(result, len(number) - 1)

    def renamed(arg):
        return map_refs(arg, named)

    def named(ref):
        return Ref(number[ref])

    ops = tuple([
        Op(
            op.name, tuple([renamed(arg) for arg in op.args]), tuple([number[r] for r in op.results]),
            op.types, tuple([(key, renamed(arg)) for key, arg in op.attrs]),
        )
        for op in graph.ops
    ])
    inputs = tuple(type(i)(number[i.id], i.type, i.name, i.alias_set) for i in graph.inputs)
    return Graph(
        graph.level, inputs, ops, tuple(number[o] for o in graph.outputs),
        tuple((number[t], number[v]) for t, v in graph.writes), graph.output_aliases,
    )
