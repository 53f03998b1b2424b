"""The rewrite engine: one forward walk over a core graph that applies rule rows as it copies it.

    rewrite(graph, RULES, is_shared=...)

Each op is rebuilt over operands that are final already. Its rules (`Rule.op` names what they match)
are tried in order; a rule answers with a value that equals the op's result, or None. Values that a
rule emits pass through the rules themselves. Equal ops become one (common subexpressions).

Guarantees: what a value is never changes, only how it is computed. Strides are kept where someone
sees them: an output or an operand of a library call whose replacement has others gets a copy
(`cast` to its own dtype); elsewhere they may change. A fresh output is memory of its own: no input,
not the value of another fresh output. Dead ops stay; `transform.cleanup` removes them.

Source: hash consing with rewriting on construction, as in Cranelift's acyclic e-graphs (without the
graph) and LuaJIT's lj_opt_fold.c.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

from preheat.ir.graph import Arg, Graph, Op, Ref, map_refs, tensor_type
from preheat.ir.scalar import Dim
from preheat.ir.types import TensorType, Type


CALLS = ("library", "matmul")
VIEWS = ("reshape", "permute", "expand", "slice")


class Rule(NamedTuple):
    """`apply(g, op)` gives a value equal to `op`'s result, or None where the rule does not hold."""

    name: str
    op: str
    apply: Callable[["Rewriter", Op], int | None]


def rewrite(graph: Graph, rules: Iterable[Rule], is_shared: Callable[[Op], bool]) -> Graph:
    """`graph` with `rules` applied. `is_shared(op)`: two equal library ops like it are one."""
    table: dict[str, list[Rule]] = {}
    for rule in rules:
        table.setdefault(rule.op, []).append(rule)
    g = Rewriter(graph, table, is_shared)
    for op in graph.ops:
        g.copy_op(op)
    return g.finish(graph)


class Rewriter:
    """The graph under construction, and what each old value became. `stored`: values of it that need memory,
    since a call or someone outside sees them."""

    def __init__(
        self, graph: Graph, table: dict[str, list[Rule]], is_shared: Callable[[Op], bool]
    ) -> None:
        self.table, self.is_shared = table, is_shared
        self.ops: list[Op] = []
        self.types: dict[int, Type] = {i.id: i.type for i in graph.inputs}
        self.old_types = graph.types()
        self.became: dict[int, int] = {i.id: i.id for i in graph.inputs}
        self.defined: dict[int, Op] = {}
        self.known: dict[tuple, tuple[int, ...]] = {}
        self.next_id = graph.next_id()
        self._with_memory = _with_memory(graph)
        self.stored: set[int] = set()

    # ------------------------------------------------------------------ what rules ask and do
    def definition(self, arg: Arg, name: str = "") -> Op | None:
        """The op that defines `arg`; None for an input, or if it is not called `name`."""
        op = self.defined.get(arg.id) if isinstance(arg, Ref) else None
        return op if op is not None and name in ("", op.name) else None

    def type(self, arg: Ref) -> TensorType:
        return tensor_type(self.types[arg.id])

    def emit(self, name: str, args: Iterable[Arg], type: TensorType, **attrs: Arg) -> int:
        """A value for this op, simplified."""
        return self.add(Op(name, tuple(args), (-1,), (type,), tuple(sorted(attrs.items()))))

    def add(self, op: Op) -> int:
        """A value for `op`, whose operands are final and whose result needs no number yet."""
        for rule in self.table.get(op.name, ()):
            found = rule.apply(self, op)
            if found is not None:
                return found
        return self._append(op)[0]

    # ------------------------------------------------------------------ the walk
    def copy_op(self, op: Op) -> None:
        if op.name == "library":
            self._copy_library(op)
            return
        args = tuple([Ref(self.became[a.id]) for a in op.args])
        made = self.became[op.result] = self.add(
            Op(op.name, args, op.results, op.types, tuple(sorted(op.attrs)))
        )
        if op.result in self._with_memory:
            self.stored.add(made)

    def _copy_library(self, op: Op) -> None:
        def renamed(arg: Arg) -> Arg:
            return map_refs(arg, lambda ref: Ref(self.as_it_was(ref)))

        args = tuple(map(renamed, op.args))
        attrs = tuple((key, renamed(arg)) for key, arg in op.attrs)
        results = self._append(replace(op, args=args, attrs=attrs))
        self.became.update(zip(op.results, results))

    def _append(self, op: Op) -> tuple[int, ...]:
        """The results of `op`: those of an equal op before it, or new ones."""
        key = (op.name, _typed(op.args), _typed(op.attrs), op.types)
        if op.name != "library" or self.is_shared(op):
            known = self.known.get(key)
            if known is not None and all(
                new != -1 or old == -1 for old, new in zip(op.results, known)
            ):
                return known
        is_library = op.name == "library"
        results = tuple([-1 if r == -1 and is_library else self._fresh() for r in op.results])
        op = Op(op.name, op.args, results, op.types, op.attrs)
        self.ops.append(op)
        for result, type in zip(results, op.types):
            if result != -1:
                self.types[result], self.defined[result] = type, op
        self.known[key] = results
        return results

    def _fresh(self) -> int:
        self.next_id += 1
        return self.next_id - 1

    def as_it_was(self, old: int) -> int:
        """What `old` became, with exactly the type it had: a copy where the strides differ."""
        new = self.became[old]
        type = self.old_types[old]
        if self.types[new] == type or not isinstance(type, TensorType):
            return new
        return self.copy(new, type)

    def copy(self, value: int, type: TensorType) -> int:
        """`value` in memory of its own with the strides of `type`."""
        return self._append(Op("cast", (Ref(value),), (-1,), (type,), (("dtype", type.dtype),)))[0]

    # ------------------------------------------------------------------ the end
    def finish(self, graph: Graph) -> Graph:
        outputs: list[int] = []
        taken = {i.id for i in graph.inputs}
        aliases = graph.output_aliases
        for place, old in enumerate(graph.outputs):
            value = self.as_it_was(old)
            if not aliases or aliases[place].kind == "fresh":
                if value in taken:
                    value = self._own(value, self.old_types[old])
                taken.add(value)
            outputs.append(value)
        writes = tuple((target, self.became[value]) for target, value in graph.writes)
        writes = tuple((target, value) for target, value in writes if target != value)
        return replace(graph, ops=tuple(self.ops), outputs=tuple(outputs), writes=writes)

    def _own(self, value: int, type: Type) -> int:
        """A copy that is shared with no one: appended without looking for an equal op."""
        if not isinstance(type, TensorType):
            return value
        fresh = self._fresh()
        self.ops.append(Op("cast", (Ref(value),), (fresh,), (type,), (("dtype", type.dtype),)))
        self.types[fresh] = type
        return fresh


def _with_memory(graph: Graph) -> set[int]:
    """Operands of calls, results and what is written: these values, and what they are views of."""
    found = {*graph.outputs, *(value for _, value in graph.writes)}
    for op in reversed(graph.ops):
        if op.name in CALLS or op.name in VIEWS and op.result in found:
            found.update(op.refs())
    return found


def _typed(arg: object) -> object:
    """`arg` as a key that tells 1 from True and 1.0, and 0.0 from -0.0."""
    if arg.__class__ is Ref:
        return Ref, arg.id  # whose hash is not computed in Python
    if isinstance(arg, tuple):
        return tuple([_typed(part) for part in arg])
    return (type(arg), repr(arg)) if isinstance(arg, (int, float, complex)) else arg


def same_region(a: Op, b: Op, size_a: Dim, size_b: Dim) -> bool:
    """Whether two slice or place ops name the same elements."""
    return size_a == size_b and all(a.attr(key) == b.attr(key) for key in ("axis", "start", "step"))
