"""Recipes to functions: what a node does after its body. Builds results, and changes what is outside.

    t0 = value 0                            def rebuild(v0, s4):
    t1 = source 4                               t2 = {'x': v0, 'y': s4}
    t2 = dict "x" t0 "y" t1         ->          c_method(s4, '__setattr__')(s4, 'last', v0)
    write t1 "last" t0; return t2               return t2

One straight-line Python function a recipe, made once when it is bound; a step costs 0.1-1 us. Every
step makes its object exactly once, so identity and cycles are as they were. Effects happen in the
order of their steps, on the objects of the current call. No code of the user runs but what a step
names: containers and attributes are changed by the methods of the nearest class of C.
"""

import types
from collections.abc import Callable
from typing import Any

from preheat.base import stubs  # noqa: F401 - recipes of tracebacks name it
from preheat.base.dataclass import dataclass
from preheat.base.errors import InternalError, Unsupported
from preheat.base.names import c_base
from preheat.bridge.ambient import SETTABLE
from preheat.ir.scalar import FUNCTIONS, Scalar, python
from preheat.ir.trace import At, Constant, Recipe, Step
from preheat.run.resolve import NotThere, constant

_INLINE = (type(None), bool, int, str, bytes)


@dataclass(frozen=True)
class Rebuild:
    """A bound recipe: `function(*values, *objects)` gives the result.

    values    how many results of the plan it takes, all of them, in order
    sources   the sources whose objects of the current call follow
    shape     "value" when the result is value 0 of one, "tuple" when it is the tuple of all values,
              "rebuild" when the function has to run
    text      the source of `function`, for people
    """

    function: Callable
    values: int
    sources: tuple[int, ...]
    shape: str
    text: str


def compile_recipe(recipe: Recipe, values: int, objects: tuple[Any, ...] = ()) -> Rebuild:
    """`recipe` as a function of `values` plan results; `Live(k)` means `objects[k]`.

    A number that only the run knows is computed from its sources. Raises Unsupported for a name that
    does not resolve.
    """
    writer = _Writer(objects)
    for place, step in enumerate(recipe.steps):
        writer.step(place, step)
    sources = tuple(writer.sources)
    parameters = [f"v{k}" for k in range(values)] + [f"s{s}" for s in sources]
    body = [*writer.lines, f"return {writer.name(recipe.result)}"]
    text = f"def rebuild({', '.join(parameters)}):\n    " + "\n    ".join(body) + "\n"
    namespace = {**_HELPERS, **FUNCTIONS, **writer.constants}
    exec(
        compile(text, "<preheat recipe>", "exec"), namespace
    )  # noqa: S102 - our own text of closed form
    return Rebuild(namespace["rebuild"], values, sources, _shape(recipe, values), text)


def _shape(recipe: Recipe, values: int) -> str:
    steps = recipe.steps
    last = steps[recipe.result]
    if last.kind == "value" and values == 1 and _is_pure(steps):
        return "value"
    if last.kind == "tuple" and _is_pure(steps) and len(last.args) == values:
        parts = [steps[a] for a in last.args]
        if all(p.kind == "value" and p.args[0] == k for k, p in enumerate(parts)):
            return "tuple"
    return "rebuild"


def _is_pure(steps: tuple[Step, ...]) -> bool:
    return all(s.kind in ("value", "source", "const", "number", "tuple") for s in steps)


# Steps that change the object which their first argument names.
_CHANGES = frozenset((
    "write", "delete", "setitem", "delitem", "append", "setattr", "update_dict", "set_cell",
    "empty_cell", "mutate",
))


_CONTAINERS = frozenset(("list", "dict", "set"))


def has_effects(recipe: Recipe) -> bool:
    """Whether the recipe changes anything that its own steps have not made."""
    steps = recipe.steps
    return any(
        step.kind == "ambient"
        or step.kind in _CHANGES and steps[step.args[0]].kind in ("source", "const")
        for step in steps
    )


class _Writer:
    """Lines of one function under construction; `names[i]` is the expression of step i."""

    def __init__(self, objects: tuple[Any, ...]):
        self.objects = objects
        self.lines: list[str] = []
        self.names: dict[int, str] = {}
        self.sources: dict[int, None] = {}
        self.constants: dict[str, Any] = {}
        self.own: set[int] = set()  # steps that make a container of a builtin class

    def step(self, place: int, step: Step) -> None:
        writer = _STEPS.get(step.kind)
        if writer is None:
            raise InternalError(f"recipe step {place} has the unknown kind {step.kind!r}")
        if step.kind in _CONTAINERS:
            self.own.add(place)
        writer(self, place, *step.args)

    def name(self, place: int) -> str:
        if place not in self.names:
            raise InternalError(f"recipe uses step {place}, which makes no object before it")
        return self.names[place]

    def all(self, places) -> str:
        """The named steps as arguments, with a trailing comma each."""
        return "".join(f"{self.name(p)}, " for p in places)

    def assign(self, place: int, expression: str) -> None:
        self.names[place] = f"t{place}"
        self.lines.append(f"t{place} = {expression}")

    def change(self, place: int, method: str, *arguments: str) -> None:
        """A line that calls C's own `method` of the object of step `place`."""
        target = self.name(place)
        if place in self.own:
            self.lines.append(f"{target}.{method}({', '.join(arguments)})")
            return
        given = ", ".join((target, *arguments))
        self.lines.append(f"c_method({target}, {method!r})({given})")

    def source(self, index: int) -> str:
        self.sources.setdefault(index)
        return f"s{index}"

    def bind(self, value: Constant) -> str:
        """An expression for `value`; what is no plain literal becomes a global of the function."""
        if isinstance(value, At):
            return self.source(value.index)
        if type(value) is tuple:
            return "(" + "".join(f"{self.bind(part)}, " for part in value) + ")"
        if type(value) in _INLINE:
            return repr(value)
        name = f"c{len(self.constants)}"
        try:
            self.constants[name] = constant(value, self.objects)
        except NotThere as error:
            raise Unsupported("unresolved", str(error)) from error
        return name


# ------------------------------------------------------------ one function a step kind
def _value(w: _Writer, place: int, index: int) -> None:
    w.names[place] = f"v{index}"


def _source(w: _Writer, place: int, index: int) -> None:
    w.names[place] = w.source(index)


def _const(w: _Writer, place: int, value: Constant) -> None:
    w.names[place] = w.bind(value)


def _number(w: _Writer, place: int, value: Any) -> None:
    if isinstance(value, Scalar):
        w.assign(place, python(value, lambda name: w.source(int(name[1:]))))
    else:
        w.names[place] = w.bind(value)


def _list(w: _Writer, place: int, *items: int) -> None:
    w.assign(place, f"[{w.all(items)}]")


def _tuple(w: _Writer, place: int, *items: int) -> None:
    w.assign(place, f"({w.all(items)})")


def _set(w: _Writer, place: int, *items: int) -> None:
    w.assign(place, f"new_set(({w.all(items)}))")


def _frozenset(w: _Writer, place: int, *items: int) -> None:
    w.assign(place, f"new_frozenset(({w.all(items)}))")


def _dict(w: _Writer, place: int, *items: int) -> None:
    pairs = zip(items[::2], items[1::2], strict=True)
    w.assign(place, "{" + "".join(f"{w.name(k)}: {w.name(v)}, " for k, v in pairs) + "}")


def _new(w: _Writer, place: int, cls: int, *arguments: int) -> None:
    w.assign(place, f"{w.name(cls)}.__new__({w.all((cls, *arguments))})")


def _call(w: _Writer, place: int, function: int, *arguments: int) -> None:
    w.assign(place, f"{w.name(function)}({w.all(arguments)})")


def _append(w: _Writer, place: int, container: int, item: int) -> None:
    w.change(container, "append", w.name(item))


def _setitem(w: _Writer, place: int, container: int, key: int, value: int) -> None:
    # dict's own method on an OrderedDict would leave its order list behind
    w.change(container, "__setitem__", w.name(key), w.name(value))


def _setattr(w: _Writer, place: int, target: int, name: str, value: int) -> None:
    w.lines.append(f"setattribute({w.name(target)}, {name!r}, {w.name(value)})")


def _update_dict(w: _Writer, place: int, target: int, name: str, value: int) -> None:
    w.lines.append(f"getattribute({w.name(target)}, '__dict__')[{name!r}] = {w.name(value)}")


def _write(w: _Writer, place: int, target: int, name: str, value: int) -> None:
    w.change(target, "__setattr__", repr(name), w.name(value))


def _delete(w: _Writer, place: int, target: int, name: str) -> None:
    w.change(target, "__delattr__", repr(name))


def _delitem(w: _Writer, place: int, container: int, key: int) -> None:
    w.change(container, "__delitem__", w.name(key))


def _mutate(w: _Writer, place: int, container: int, method: str, count: int, *rest: int) -> None:
    names, values = rest[count::2], rest[count + 1 :: 2]
    keywords = (f"{name!r}: {w.name(value)}" for name, value in zip(names, values, strict=True))
    given = [w.name(step) for step in rest[:count]]
    w.change(container, method, *given, *([f"**{{{', '.join(keywords)}}}"] if names else []))


def _ambient(w: _Writer, place: int, name: str, value: Constant) -> None:
    if name not in SETTABLE:
        raise Unsupported("ambient_change", f"{name} cannot be set")
    setter = f"set_{name}"
    w.constants[setter] = SETTABLE[name]
    w.lines.append(f"{setter}({w.bind(value)})")


def _cell(w: _Writer, place: int, *content: int) -> None:
    w.assign(place, f"new_cell({w.all(content)})")


def _set_cell(w: _Writer, place: int, cell: int, content: int) -> None:
    w.lines.append(f"{w.name(cell)}.cell_contents = {w.name(content)}")


def _empty_cell(w: _Writer, place: int, cell: int) -> None:
    w.lines.append(f"empty({w.name(cell)})")


def _function(
    w: _Writer, place: int, code: int, namespace: int, name: int, defaults: int, *cells: int
) -> None:
    w.assign(
        place, f"new_function({w.all((code, namespace, name, defaults))}({w.all(cells)}) or None)"
    )


def _code(w: _Writer, place: int, function: int, index: int) -> None:
    w.assign(place, f"{w.name(function)}.__code__.co_consts[{index}]")


def _advance(w: _Writer, place: int, iterator: int, count: int) -> None:
    w.lines.append(f"advance({w.name(iterator)}, {count})")


def _method(w: _Writer, place: int, function: int, owner: int) -> None:
    w.assign(place, f"new_method({w.all((function, owner))})")


_STEPS: dict[str, Callable] = {
    "value": _value,
    "source": _source,
    "const": _const,
    "number": _number,
    "list": _list,
    "tuple": _tuple,
    "set": _set,
    "frozenset": _frozenset,
    "dict": _dict,
    "new": _new,
    "call": _call,
    "append": _append,
    "setitem": _setitem,
    "setattr": _setattr,
    "update_dict": _update_dict,
    "cell": _cell,
    "set_cell": _set_cell,
    "empty_cell": _empty_cell,
    "write": _write,
    "delete": _delete,
    "delitem": _delitem,
    "mutate": _mutate,
    "ambient": _ambient,
    "code": _code,
    "advance": _advance,
    "function": _function,
    "method": _method,
}


# ------------------------------------------------------------ what the functions call
def _c_method(value: Any, name: str) -> Callable:
    """The unbound method of the nearest class of C: dict's of a dict subclass, whatever its own."""
    return getattr(c_base(type(value)), name)


def _empty(cell: types.CellType) -> None:
    del cell.cell_contents


def _advance_by(iterator: Any, count: int) -> None:
    for _ in range(count):
        next(iterator)


_HELPERS: dict[str, Any] = {
    "advance": _advance_by,
    "c_method": _c_method,
    "empty": _empty,
    "setattribute": object.__setattr__,
    "getattribute": object.__getattribute__,
    "new_set": set,
    "new_frozenset": frozenset,
    "new_cell": types.CellType,
    "new_function": types.FunctionType,
    "new_method": types.MethodType,
}
