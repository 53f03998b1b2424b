"""Recipes to functions: what rebuilds a call's result from the values that the plan computed.

    t0 = value 0                            def rebuild(v0, s0):
    t1 = source 4                               t2 = {'x': v0, 'y': s0}
    t2 = dict "x" t0 "y" t1         ->          t3 = c0.__new__(c0)
    t3 = new ModelOutput                        setitem(t3, 'x', v0)
    setitem t3 "x" t0; return t3                return t3

One straight-line Python function a recipe, made once when it is bound; a step costs 0.1-1 us. Every
step makes its object exactly once, so identity and cycles are as they were. No code of the
user runs but what a step names: containers are filled through their exact base class.
"""

import types
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from preheat.base.errors import InternalError, Unsupported
from preheat.ir.scalar import Scalar
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

    Raises Unsupported for a name that does not resolve and for a number only known at run time.
    """
    writer = _Writer(objects)
    for place, step in enumerate(recipe.steps):
        writer.step(place, step)
    sources = tuple(writer.sources)
    parameters = [f"v{k}" for k in range(values)] + [f"s{s}" for s in sources]
    body = [*writer.lines, f"return {writer.name(recipe.result)}"]
    text = f"def rebuild({', '.join(parameters)}):\n    " + "\n    ".join(body) + "\n"
    namespace = {**_HELPERS, **writer.constants}
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


class _Writer:
    """Lines of one function under construction; `names[i]` is the expression of step i."""

    def __init__(self, objects: tuple[Any, ...]):
        self.objects = objects
        self.lines: list[str] = []
        self.names: dict[int, str] = {}
        self.sources: dict[int, None] = {}
        self.constants: dict[str, Any] = {}

    def step(self, place: int, step: Step) -> None:
        writer = _STEPS.get(step.kind)
        if writer is None:
            raise InternalError(f"recipe step {place} has the unknown kind {step.kind!r}")
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
        raise Unsupported("symbolic", f"the result holds {value}, which is only known at run time")
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
    w.lines.append(f"append({w.all((container, item))})")


def _setitem(w: _Writer, place: int, container: int, key: int, value: int) -> None:
    w.lines.append(f"setitem({w.all((container, key, value))})")


def _setattr(w: _Writer, place: int, target: int, name: str, value: int) -> None:
    w.lines.append(f"setattribute({w.name(target)}, {name!r}, {w.name(value)})")


def _update_dict(w: _Writer, place: int, target: int, name: str, value: int) -> None:
    w.lines.append(f"getattribute({w.name(target)}, '__dict__')[{name!r}] = {w.name(value)}")


def _cell(w: _Writer, place: int, *content: int) -> None:
    w.assign(place, f"new_cell({w.all(content)})")


def _set_cell(w: _Writer, place: int, cell: int, content: int) -> None:
    w.lines.append(f"{w.name(cell)}.cell_contents = {w.name(content)}")


def _function(
    w: _Writer, place: int, code: int, namespace: int, name: int, defaults: int, *cells: int
) -> None:
    w.assign(
        place, f"new_function({w.all((code, namespace, name, defaults))}({w.all(cells)}) or None)"
    )


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
    "function": _function,
    "method": _method,
}


# ------------------------------------------------------------ what the functions call
def _append_exactly(container: Any, item: Any) -> None:
    if isinstance(container, list):
        list.append(container, item)
    else:
        container.append(item)


def _setitem_exactly(container: Any, key: Any, value: Any) -> None:
    # dict.__setitem__ on an OrderedDict would leave its order list behind
    for base in (OrderedDict, dict, list):
        if isinstance(container, base):
            base.__setitem__(container, key, value)
            return
    container[key] = value


_HELPERS: dict[str, Any] = {
    "append": _append_exactly,
    "setitem": _setitem_exactly,
    "setattribute": object.__setattr__,
    "getattribute": object.__getattribute__,
    "new_set": set,
    "new_frozenset": frozenset,
    "new_cell": types.CellType,
    "new_function": types.FunctionType,
    "new_method": types.MethodType,
}
