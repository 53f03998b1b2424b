"""Divide: which op of a differentiable graph belongs to which node of autograd.

    %2 = mul(%0, %1) grad     class 0 (reaches %2 and %3)
    %3 = exp(%2) grad         class 1 (reaches %3)
    return %2 grad, %3 grad

Requires a functional graph that says which values require grad (`functionalize`). The class of an
op is the set of escaping values that its result reaches through edges of gradients; ops that reach
none have no class. Sets shrink along edges, so no class waits for itself. An escaping value is
always a result of its class: what is computed from it further on takes it from outside, as eager
does. A view that escapes is made outside from the memory that it lies in.

Guarantees: every argument that a class takes with its gradient is an input, an escaping view, or a
result of a class before it.
"""

from collections.abc import Iterator, Sequence

from preheat.base.errors import Unsupported
from preheat.bridge.ops import schema
from preheat.ir.graph import CARRY, Graph, Op, OutputAlias, Ref
from preheat.ir.training import Division, Exit, Given, GradClass, Wiring
from preheat.transform.views import VIEWS

_BATCH_NORM = "aten._native_batch_norm_legit_functional.default"


def divide(graph: Graph) -> Division:
    """The division of `graph`. Without classes nothing that leaves it requires grad.

    Raises Unsupported where one history has two states: what was computed from the first would have to
    be a function of the second.
    """
    _refuse_two_states(graph)
    commits = tuple(_commits(graph))
    views = tuple(_views(graph))
    escaping = [
        *(value for place, value in enumerate(graph.outputs)
          if place in graph.grad_outputs and _is_fresh(graph, place)),
        *(value for _, value in commits),
    ]
    reached = _reached(graph, escaping, views)
    class_of, classes = _classes(graph, reached, views, set(escaping))
    fresh = [v for place, v in enumerate(graph.outputs) if _is_fresh(graph, place)]
    results = [value for one in classes for value in one.results]
    values = tuple(dict.fromkeys((*fresh, *(v for _, v in commits), *results)))
    replaced = tuple(_replaced(graph, class_of))
    apart, needed = _needed(graph, class_of)
    return Division(graph, class_of, classes, values, views, commits, replaced, apart, needed)


def refuse_quiet_views(graph: Graph) -> None:
    """Raises Unsupported for a recorded graph that uses a view under autograd which it made outside
    of it: torch says that such a view requires grad, and gives it no history."""
    quiet: set[int] = set()
    for op in graph.ops:
        sources = {alias for alias in op.aliases if alias != -1} | {*op.refs()}
        is_view = any(alias not in (-1, r) for alias, r in zip(op.aliases, op.results))
        if is_view and op.name != "aten.detach.default":
            if not op.is_grad_enabled and not sources.isdisjoint(graph.grads):
                quiet.update(op.results)
        if op.is_grad_enabled and not quiet.isdisjoint(op.refs()):
            raise Unsupported("unknown_history", f"{op.name} of a view made under no_grad")
    if not quiet.isdisjoint(graph.outputs):
        raise Unsupported("unknown_history", "a view made under no_grad is a result")


def refuse_rebuilt_views(graph: Graph) -> None:
    """Raises Unsupported for a recorded graph with a view of a result, itself a result or used, of memory
    that was written to since under autograd: torch then takes the view from the memory anew, and no
    gradient goes through that result. Also for a result that is a view and has its history from such a
    write alone, and was not used since: torch refuses to write to it until it has been."""
    maker = {
        op.results[0]: place for place, op in enumerate(graph.ops)
        if op.name in VIEWS and len(op.results) == 1}
    root, grads = {given.id: given.id for given in graph.inputs}, set(graph.grads)
    written: dict[int, int] = {}  # memory -> the last op that wrote to it
    first: dict[int, int] = {}  # memory that had no history -> the op that gave it one
    last_used: dict[int, int] = {}  # value -> the last op under autograd that took it
    for place, op in enumerate(graph.ops):
        root.update((r, r if alias == -1 else root.get(alias, alias))
                    for r, alias in zip(op.results, op.aliases) if r not in root)
        if op.is_grad_enabled:
            written.update((root.get(value, value), place) for value in op.writes)
            last_used.update((value, place) for value in op.refs())
            for value in op.writes:
                if root.get(value, value) not in grads and not grads.isdisjoint(op.refs()):
                    first.setdefault(root.get(value, value), place)
    outputs = {value for place, value in enumerate(graph.outputs) if place in graph.grad_outputs}
    used = {
        value for place, op in enumerate(graph.ops) if op.is_grad_enabled
        for value in op.refs() if written.get(root[value], place) < place}
    for value in outputs & maker.keys():
        if max(maker[value], last_used.get(value, -1)) < first.get(root[value], -1):
            raise Unsupported("unknown_history", "a view made before its memory had a history, not used since")
    for value in outputs | used:
        if value not in maker or written.get(root[value], -1) < maker[value]:
            continue
        above = graph.ops[maker[value]].args[0].id
        while above not in outputs and above in maker:
            above = graph.ops[maker[above]].args[0].id
        if above in outputs and above != root[value]:
            raise Unsupported("unknown_history", "a view of another result, written to since")


def _refuse_two_states(graph: Graph) -> None:
    inputs, grads = {given.id for given in graph.inputs}, set(graph.grads)
    kept = {op.args[1].id: op for op in graph.ops if op.name == CARRY} if grads else {}
    for op in graph.ops if kept else ():
        for value in _with_gradient(op, grads):
            if value in kept and value not in inputs and kept[value] is not op:
                raise Unsupported("unknown_history", f"{op.name} of what no_grad changes later")


def _is_fresh(graph: Graph, place: int) -> bool:
    return not graph.output_aliases or graph.output_aliases[place].kind == "fresh"


def _views(graph: Graph) -> Iterator[int]:
    """Outputs with a history that lie in memory of inputs or of other outputs."""
    inputs = {given.id for given in graph.inputs}
    for place in graph.grad_outputs:
        if not _is_fresh(graph, place) and graph.outputs[place] not in inputs:
            yield graph.outputs[place]


def _commits(graph: Graph) -> Iterator[tuple[int, int]]:
    """Writes to inputs whose new history is not the input's own."""
    made = {op.result: op for op in graph.ops if op.name == CARRY}
    place_of = {given.id: place for place, given in enumerate(graph.inputs)}
    for target, value in graph.writes:
        history = value
        while history in made:
            history = made[history].args[1].id
        if history != target and value in graph.grads:
            yield place_of[target], value


def _replaced(graph: Graph, class_of: tuple[int, ...]) -> Iterator[int]:
    """Places of the written inputs from whose old elements a class computes."""
    written = {target for target, _ in graph.writes}
    needed: set[int] = set()
    for op, number in zip(reversed(graph.ops), reversed(class_of)) if written else ():
        if number >= 0 or not needed.isdisjoint(op.results):
            refs = [*op.refs()]
            if op.name == _BATCH_NORM:  # its results do not depend on the running statistics
                refs = [r for r in refs if Ref(r) not in op.args[3:5]]
            needed.update(refs)
    for place, given in enumerate(graph.inputs):
        if given.id in written and given.id in needed:
            yield place


def _needed(
    graph: Graph, class_of: tuple[int, ...],
) -> tuple[frozenset[int], tuple[int, ...]]:
    """The ops that classes are not computed from, and the places of the inputs that the others take, or
    where what they give is written. What draws random numbers is no such op: later draws come after it.
    """
    needed: set[int] = set()
    kept: set[int] = set()
    for place in reversed(range(len(graph.ops))):
        op = graph.ops[place]
        is_drawn = op.name != CARRY and schema(op.name).is_random
        if class_of[place] >= 0 or is_drawn or not needed.isdisjoint(op.results):
            kept.add(place)
            needed.update((*op.refs(), *op.results))
    for place, op in enumerate(graph.ops):  # whose memory it is, the record shall know
        if op.name in VIEWS and needed.issuperset(op.refs()):
            kept.add(place)
            needed.update(op.results)
    for written, memory in graph.stored:
        if written in needed:
            needed.add(memory)
    needed.update(target for target, value in graph.writes if value in needed)
    return frozenset(range(len(graph.ops))) - kept, tuple(
        place for place, given in enumerate(graph.inputs) if given.id in needed)


def _reached(graph: Graph, escaping: list[int], views: tuple[int, ...]) -> list[frozenset[int]]:
    """For each op the escaping values that its results reach."""
    grads = set(graph.grads)
    reach: dict[int, frozenset[int]] = {value: frozenset((value,)) for value in escaping}
    found: list[frozenset[int]] = []
    for op in reversed(graph.ops):
        mine: frozenset[int] = frozenset()
        if not grads.isdisjoint(_with_gradient(op, grads)):
            mine = mine.union(*(reach.get(r, frozenset()) for r in op.results if r in grads))
        for value in _with_gradient(op, grads):
            reach[value] = reach.get(value, frozenset()) | mine
        found.append(frozenset() if not set(views).isdisjoint(op.results) else mine)
    return found[::-1]


def _with_gradient(op: Op, grads: set[int]) -> list[int]:
    """The operands that the op's gradient goes to, each once, in order."""
    if not op.is_grad_enabled or op.name == "aten.detach.default":
        return []
    refs = [op.args[1].id] if op.name == CARRY else op.refs()
    return [value for value in dict.fromkeys(refs) if value in grads]


def _classes(
    graph: Graph, reached: list[frozenset[int]], views: tuple[int, ...], escaping: set[int],
) -> tuple[tuple[int, ...], tuple[GradClass, ...]]:
    grads = set(graph.grads)
    first = {reach: position for position, reach in reversed([*enumerate(reached)]) if reach}
    order = sorted(first, key=lambda reach: (-len(reach), first[reach]))
    number = {reach: k for k, reach in enumerate(order)}
    class_of = tuple(number.get(reach, -1) for reach in reached)
    maker = {
        result: k for op, k in zip(graph.ops, class_of) for result in op.results
        if result in grads and result not in views}
    args: list[list[tuple[int, int]]] = [[] for _ in order]
    results: list[dict[int, None]] = [{} for _ in order]
    for position in reversed(range(len(graph.ops))):
        mine = class_of[position]
        for value in _with_gradient(graph.ops[position], grads) if mine >= 0 else ():
            if maker.get(value, -1) != mine:
                args[mine].append((value, position))
                if maker.get(value, -1) >= 0:
                    results[maker[value]][value] = None
    for value in escaping:
        if maker.get(value, -1) >= 0:
            results[maker[value]][value] = None
    made = {value: place for place, op in enumerate(graph.ops) for value in op.results}
    return class_of, tuple(
        GradClass(
            tuple(sorted(results[k], key=made.__getitem__)),
            tuple(value for value, _ in args[k]), tuple(use for _, use in args[k]))
        for k in range(len(order)))


def wire(division: Division) -> Wiring:
    """How the tensors of a call are joined to autograd. Raises Unsupported for a history that does
    not begin at the inputs."""
    graph = division.graph
    inputs = {given.id: place for place, given in enumerate(graph.inputs)}
    place_of = {value: place for place, value in enumerate(division.values)}
    committed = {value: place for place, value in division.commits}
    results = {value for one in division.classes for value in one.results}

    def found(value: int, is_argument: bool = True) -> Given:
        if value in committed and is_argument:
            return Given("input", committed[value])
        if value in inputs:
            place = inputs[value]
            return Given("before" if place in committed.values() else "input", place)
        if value in division.views:
            return Given("exit", graph.outputs.index(value))
        if value in results or value in place_of and value not in graph.grads:
            return Given("value", place_of[value])
        raise Unsupported("unknown_history", f"{graph.types()[value]} has a history of its own")

    types = graph.types()
    aliases = graph.output_aliases or (OutputAlias(),) * len(graph.outputs)
    exits = []
    for place, (value, alias) in enumerate(zip(graph.outputs, aliases)):
        needs_grad = place in graph.grad_outputs
        if alias.kind == "fresh":
            exits.append(Exit(found(value, False), False, needs_grad, types[value]))
        else:
            given, steps = _steps(graph, place, aliases)
            if alias.is_detached and not steps:
                raise Unsupported("unknown_view", f"a detached output of type {types[value]}")
            exits.append(Exit(given, True, needs_grad, types[value], alias.offset, steps))
    return Wiring(
        tuple(
            (tuple(map(found, one.args)), tuple(place_of[v] for v in one.results))
            for one in division.classes),
        tuple((place, place_of[value]) for place, value in division.commits),
        tuple(exits),
    )


def _steps(
    graph: Graph, place: int, aliases: Sequence[OutputAlias],
) -> tuple[Given, tuple[Op, ...]]:
    """From what output `place` is taken, and by which views: from the nearest output above it, as in
    eager, else from the memory that it lies in. Without views: by sizes, strides and offset."""
    alias, value = aliases[place], graph.outputs[place]
    makers = {op.results[0]: op for op in graph.ops if op.name in VIEWS and len(op.results) == 1}
    above = {v: p for p, v in reversed([*enumerate(graph.outputs)]) if p != place}
    written = dict(graph.writes)
    given, base = Given("exit", alias.base), -1
    if alias.kind == "input":
        base = graph.inputs[alias.base].id
        given, base = Given("input", alias.base), written.get(base, base)
    steps: list[Op] = []
    while value in makers:
        steps.append(makers[value])
        value = steps[-1].args[0].id
        if value in above:
            return Given("exit", above[value]), tuple(steps[::-1])
        if value == base:
            return given, tuple(steps[::-1])
    return given, ()
