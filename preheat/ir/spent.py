"""Spent: nodes whose own effects end what their guards claim, so that the next call is another's.

    guard p not in self.state                      spent_by(trace) -> that guard
    self.state[p] = {"step": ...}

The first step of an optimizer is one, as is every `if self.cache is None: self.cache = ...`. Such a node
may come again, in another process or for an object that is new; until it does, code for it is wasted.

Looks at what the recipe stores where a guard has looked: not whether it is stored under another name.
"""

from preheat.ir.trace import At, Constant, Guard, Recipe, Trace


def spent_by(trace: Trace) -> Guard | None:
    """The first guard of the one node of `trace` that its effects make false; None if there is none."""
    (node,) = trace.nodes
    stored = _stored(trace, node.end.recipe)
    return next((guard for guard in node.guards if _is_ended(trace, guard, stored)), None)


def _stored(trace: Trace, recipe: Recipe) -> dict[tuple[int, Constant], Constant]:
    """What the recipe stores at last in objects from outside: (source, key) -> a constant, or `_NEW`."""
    spaces = {
        source.parent: place for place, source in enumerate(trace.sources) if source.kind == "dict"}
    found: dict[tuple[int, Constant], Constant] = {}
    for step in recipe.steps:
        if step.kind not in ("setitem", "write"):
            continue
        target, key, value = step.args
        target = recipe.steps[target]
        if target.kind != "source":
            continue
        owner = target.args[0]
        if step.kind == "write":  # to an attribute: guards look at the dict
            owner = spaces.get(owner, -1)
        else:
            key = _constant(recipe, key)
        found[owner, _told_apart(key)] = _constant(recipe, value)
    return found


def _is_ended(trace: Trace, guard: Guard, stored: dict) -> bool:
    if guard.kind == "absent":
        return (guard.source, _told_apart(guard.expected)) in stored
    if guard.kind == "contains":
        key, is_there = guard.expected
        return not is_there and (guard.source, _told_apart(key)) in stored
    if guard.kind not in ("is", "value") or guard.source < 0 or type(guard.expected) is At:
        return False
    source = trace.sources[guard.source]
    place = source.parent, _told_apart(source.key)
    is_stored = source.kind == "item" and place in stored
    return is_stored and _told_apart(stored[place]) != _told_apart(guard.expected)


_NEW = ("new",)  # an object that the node makes, or a number that it computes


def _constant(recipe: Recipe, place: int) -> Constant:
    step = recipe.steps[place]
    if step.kind == "source":
        return At(step.args[0])
    return step.args[0] if step.kind == "const" else _NEW


def _told_apart(value: Constant) -> tuple:
    """Equal for what is the same constant: 1 is not True."""
    return type(value), value
