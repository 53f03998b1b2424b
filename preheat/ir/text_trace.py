"""Text of traces: sources as the paths a user would write, guards and recipes as Python-like lines.

    entry(2 args)
      node 0
        guard x.shape ...
        body (arg0, self.weight) -> 1 output
        return {"logits": %0}

A trace is only printed: it is read back from its bytes (`pack`), never from text.
"""

import re
from collections.abc import Callable

from preheat.ir.scalar import python
from preheat.ir.trace import (
    At, Constant, Goto, Guard, Host, Live, Named, Node, Point, Recipe, Return, Step, TensorFacts,
    Trace,
)
from preheat.ir.words import show_number, show_type


def show_trace(trace: Trace, show_body: Callable[..., str]) -> str:
    """The text of `trace`; `show_body(graph, indent)` spells its graphs."""
    signature = trace.signature
    last = ", the last one all others" if signature.rest >= 0 else ""
    words = [f"{signature.positional} args{last}", *(f"{name}=" for name in signature.keywords)]
    lines = [f"entry({', '.join(words)})" + (f"   python {trace.python}" if trace.python else "")]
    for number, node in enumerate(trace.nodes):
        lines.append(f"  node {number}")
        lines += [f"    {line}" for line in _show_node(trace, node, show_body)]
    return "\n".join(lines)


def _show_node(trace: Trace, node: Node, show_body: Callable[..., str]) -> list[str]:
    lines = [f"guard {show_guard(trace, guard)}" for guard in node.guards]
    if node.body is not None:
        feeds = ", ".join(source_path(trace, source) for source in node.inputs)
        lines += [f"body ({feeds})", *show_body(node.body, "  ").splitlines()]
    return lines + _show_end(trace, node.end)


def _show_end(trace: Trace, end: object) -> list[str]:
    *steps, result = show_recipe(trace, end.recipe)
    if isinstance(end, Return):
        return [*steps, f"return {result}"]
    word = "host" if isinstance(end, Host) else "goto"
    assert isinstance(end, Host | Goto), end
    return [*steps, f"{word} {result}", *_show_point(trace, end.point)]


def _show_point(trace: Trace, point: Point) -> list[str]:
    """The frames of a point, with its slots as outputs."""
    last = ", the last one the answer" if point.has_answer else ""
    lines = show_recipe(trace, point.snapshot)
    return [f"point ({point.slots} slots{last})", *(f"  {line}" for line in lines)]


_AXIS_PATH = re.compile(r"\.shape\[\d+\]$|\.stride\(\d+\)$|^\*\d+$|^tensor ")


# ---------------------------------------------------------------------------- sources
_ROOTS: dict[str, Callable[[Trace, Constant], str]] = {
    "entry": lambda trace, key: "self",
    "arg": lambda trace, key: f"arg{key}",
    "kwarg": lambda trace, key: f"{key}",
    "named": lambda trace, key: show_constant(trace, key),
    "live": lambda trace, key: show_constant(trace, key),
    "slot": lambda trace, key: f"slot{key}",
    "number": lambda trace, key: python(key, lambda name: source_path(trace, int(name[1:]))),
}
_STEPS: dict[str, Callable[[str, str], str]] = {
    "attr": lambda o, key: f"{o}.{key}",
    "dict": lambda o, key: f"{o}.__dict__",
    "item": lambda o, key: f"{o}[{key}]",
    "key": lambda o, key: f"list({o})[{key}]",
    "type": lambda o, key: f"type({o})",
    "class": lambda o, key: f"{o}.{key}",
    "cell": lambda o, key: f"{o}.cell_contents",
    "closure": lambda o, key: f"{o}.__closure__[{key}]",
    "globals": lambda o, key: f"{o}.__globals__",
    "len": lambda o, key: f"len({o})",
    "size": lambda o, key: axis_path(o, "size", key),
    "stride": lambda o, key: axis_path(o, "stride", key),
    "element": lambda o, key: f"{o}.item()",
}


_ITEMS = "[:]"
ARGUMENTS = "*args"
"""Stands for the positional arguments of the call, as a list."""
EVERY_SIZE = "*"
"""Among the paths of what changes: all sizes of tensors in arguments."""


def is_axis_path(path: str) -> bool:
    """Whether `path` is a size or a stride of a tensor, or speaks of sizes."""
    return _AXIS_PATH.search(path) is not None


def equal_sizes(size: int) -> str:
    """Among the paths of what changes: sizes that are `size`, of tensors that are new (`known_tensor`)."""
    return f"*{size}"


def known_tensor(path: str) -> str:
    """Beside `equal_sizes`: of the tensor at `path` it is known which sizes change."""
    return f"tensor {path}"


def items_path(container: str) -> str:
    """All items of a list whose length changes."""
    return f"{container}{_ITEMS}"


def range_path(number: str) -> str:
    """Ranges that a number bounds which has been another one in each of three calls."""
    return f"range({number})"


def keys_path(container: str) -> str:
    """The keys of a dict, which are others from call to call."""
    return f"keys({container})"


def turns_path(number: str) -> str:
    """Loops that turn as often as a number says, which decided something else in a call before."""
    return f"turns({number})"


def without_items(paths: frozenset[str]) -> frozenset[str]:
    """`paths` where what turns as often as a list, a range or a number says may not end the graph."""
    return frozenset(path for path in paths if not path.endswith(_ITEMS) and not path.startswith(("range(", "turns(")))


def has_lists(paths: frozenset[str]) -> bool:
    """Whether there is a list among them whose length changes."""
    return any(path.endswith(_ITEMS) for path in paths)


def axis_path(tensor: str, kind: str, axis: int) -> str:
    """The size, or the stride, of an axis of the tensor with path `tensor`."""
    return f"{tensor}.shape[{axis}]" if kind == "size" else f"{tensor}.stride({axis})"



def source_path(trace: Trace, number: int) -> str:
    """The source as a user would write it: `self.layers[3].weight`."""
    if number < 0:
        return ""
    source = trace.sources[number]
    if source.parent < 0:
        key = source.key
        if source.kind in ("named", "live") and not isinstance(key, (Named, Live)):
            key = Live(key) if isinstance(key, int) else Named(*key)
        return _ROOTS.get(source.kind, lambda t, k: f"{source.kind}({k})")(trace, key)
    parent = trace.sources[source.parent]
    above = source_path(trace, source.parent)
    is_name = source.kind == "item" and isinstance(source.key, str) and source.key.isidentifier()
    if is_name and parent.kind == "dict":
        return f"{above.removesuffix('.__dict__')}.{source.key}"
    # nn.Module keeps parameters, buffers and modules in dicts of these names.
    for table in ("._parameters", "._buffers", "._modules"):
        if source.kind == "item" and isinstance(source.key, str) and above.endswith(table):
            owner = above.removesuffix(table)
            return f"{owner}[{source.key}]" if source.key.isdigit() else f"{owner}.{source.key}"
    key = source.key if source.kind in ("attr", "class") else show_constant(trace, source.key)
    return _STEPS.get(source.kind, lambda o, k: f"{o}.<{source.kind} {k}>")(above, key)


def show_constant(trace: Trace, constant: Constant) -> str:
    """A constant as Python-like text."""
    if isinstance(constant, Named):
        return f"{constant.module}.{constant.qualname}".rstrip(".")
    if isinstance(constant, Live):
        return f"<live {constant.index}>"
    if isinstance(constant, At):
        return source_path(trace, constant.index)
    if isinstance(constant, tuple):
        inner = ", ".join(show_constant(trace, part) for part in constant)
        return f"({inner},)" if len(constant) == 1 else f"({inner})"
    return repr(constant)


# ---------------------------------------------------------------------------- guards
_CLAIMS: dict[str, str] = {
    "type": "type({o}) is {e}", "is": "{o} is {e}", "isnot": "{o} is not {e}",
    "value": "{o} == {e}", "tensor": "{o}: {e}", "code": "{o}.__code__ has digest {e}",
    "absent": "{e} not in {o}", "keys": "list({o}) == {e}", "len": "len({o}) == {e}",
    "set": "{o} == set({e})", "noattr": "not hasattr({o}, {e})", "mro": "{o}.__mro__ is {e}",
}
# The expected value is a pair: {a} and {b}.
_PAIR_CLAIMS: dict[str, str] = {
    "contains": "({a} in {o}) is {b}", "isinstance": "isinstance({o}, {a}) is {b}",
    "class": "{o} has {b} as {a} in its MRO", "ambient": "ambient {a} is {b}",
}


def show_guard(trace: Trace, guard: Guard) -> str:
    """A guard as a claim in Python-like text."""
    path, expected = source_path(trace, guard.source), guard.expected
    if guard.kind in _PAIR_CLAIMS:
        first, second = (show_constant(trace, part) for part in expected)
        name = expected[0] if guard.kind in ("class", "ambient") else first
        return _PAIR_CLAIMS[guard.kind].format(o=path, a=name, b=second)
    if isinstance(expected, TensorFacts):
        text = show_type(expected.type) + (" requires_grad" if expected.requires_grad else "")
    else:
        text = show_constant(trace, expected)
    return _CLAIMS.get(guard.kind, guard.kind + " {o} {e}").format(o=path, e=text)


# ---------------------------------------------------------------------------- recipes
_EFFECTS: dict[str, str] = {
    "append": "{0}.append({1})",
    "setitem": "{0}[{1}] = {2}",
    "setattr": "object.__setattr__({0}, {1}, {2})",
    "update_dict": "{0}.__dict__[{1}] = {2}",
    "set_cell": "{0}.cell_contents = {1}",
    "write": "{0}.{1} = {2}",
    "delete": "del {0}.{1}",
    "mutate": "{0}.{1}({2})",
    "delitem": "del {0}[{1}]",
    "empty_cell": "del {0}.cell_contents",
    "ambient": "ambient {0} = {1}",
}


def show_recipe(trace: Trace, recipe: Recipe) -> list[str]:
    """A line for each step that has an effect or is used twice; last, the result."""
    used: dict[int, int] = {}
    for step in recipe.steps:
        for operand in _operands(step):
            used[operand] = used.get(operand, 0) + 1
    texts: dict[int, str] = {}
    lines: list[str] = []
    for number, step in enumerate(recipe.steps):
        text = _show_step(trace, step, texts)
        if step.kind in _EFFECTS:
            lines.append(text)
        elif used.get(number, 0) > 1 and step.args and step.kind not in _LEAVES:
            lines.append(f"r{number} = {text}")
            texts[number] = f"r{number}"
        else:
            texts[number] = text
    return [*lines, texts.get(recipe.result, "None")]


_LEAVES = frozenset(("value", "source", "const", "number"))


def _operands(step: Step) -> list[int]:
    if step.kind in _LEAVES:
        return []
    args = (step.args[0], *step.args[3:]) if step.kind == "mutate" else step.args
    return [a for a in args if type(a) is int]


def _show_step(trace: Trace, step: Step, texts: dict[int, str]) -> str:
    if step.kind == "value":
        return f"output {step.args[0]}"
    if step.kind == "source":
        return source_path(trace, step.args[0])
    if step.kind in ("const", "number"):
        number = step.args[0]
        return show_constant(trace, number) if step.kind == "const" else show_number(number)
    if step.kind == "mutate":
        return _show_mutate(step, texts)
    args = [texts.get(a, f"r{a}") if type(a) is int else show_constant(trace, a) for a in step.args]
    if step.kind in ("write", "delete"):
        args[1] = step.args[1]
    if step.kind in _EFFECTS and len(args) >= _EFFECTS[step.kind].count("{"):
        return _EFFECTS[step.kind].format(*args)
    if step.kind == "list":
        return f"[{', '.join(args)}]"
    if step.kind == "tuple":
        return f"({', '.join(args)}{',' if len(args) == 1 else ''})"
    if step.kind == "dict":
        return "{" + ", ".join(f"{k}: {v}" for k, v in zip(args[::2], args[1::2])) + "}"
    if step.kind in ("new", "call") and args:
        return f"{args[0]}{'.__new__' if step.kind == 'new' else ''}({', '.join(args[1:])})"
    return f"{step.kind}({', '.join(args)})"


def _show_mutate(step: Step, texts: dict[int, str]) -> str:
    target, method, count, *rest = step.args
    given = [texts.get(a, f"r{a}") for a in rest[:count]]
    pairs = zip(rest[count::2], rest[count + 1 :: 2])
    given += [f"{name}={texts.get(value, f'r{value}')}" for name, value in pairs]
    return f"{texts.get(target, f'r{target}')}.{method}({', '.join(given)})"
