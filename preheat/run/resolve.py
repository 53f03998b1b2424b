"""Sources to objects: walks from a call's arguments to everything that its trace consulted.

    resolve(trace, model, (x,), {})  ->  [model, {...its __dict__}, "relu", x, ...]   one a source
                                     ->  Miss(7, "no key 'bias'") if a source is not there any more

No code of the user runs: attributes are read through C descriptors only, containers through the
methods of their exact base class. A step whose object has no such base class is a miss, so a change
of type can not smuggle a `__getattr__` or `__getitem__` in. `ir/trace.Source` says what steps mean.
"""

import collections
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from preheat.base.dataclass import dataclass
from preheat.base.errors import Unsupported
from preheat.base.names import find, raw_attribute
from preheat.bridge.tensors import PLAIN_TENSORS, Tensor
from preheat.ir.scalar import Scalar, evaluate
from preheat.ir.trace import At, Constant, Live, Named, Source, Step, Trace


@dataclass(frozen=True)
class Miss:
    """Source number `source` does not resolve, and why."""

    source: int
    why: str


class NotThere(Exception):
    """A step of a source has nowhere to go. Its message says why."""


def resolve(
    trace: Trace, target: Any, args: Sequence, kwargs: Mapping[str, Any], objects: Sequence = (),
) -> list[Any] | Miss:
    """The object of every source of `trace` in a call `target(*args, **kwargs)`.

    `objects` are the trace's live objects (`Captured.objects`). Checks no guard.
    """
    call = Call(target, args, kwargs, objects)
    found: list[Any] = []
    for number, source in enumerate(trace.sources):
        try:
            found.append(resolve_source(source, call, found))
        except NotThere as why:
            return Miss(number, str(why))
    return found


@dataclass(frozen=True)
class Call:
    """What the roots of sources resolve in."""

    target: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    objects: Sequence[Any] = ()


def resolve_source(source: Source, call: Call, found: Sequence[Any]) -> Any:
    """The object of `source`; `found` holds those of the sources before it. Raises NotThere."""
    if source.parent < 0:
        if source.kind == "number":
            return number(source.key, found)
        return ROOTS[source.kind](call, source.key)
    key = source.key
    if key.__class__ in _NAMES:
        key = constant(key, call.objects, found)
    return STEPS[source.kind](found[source.parent], key)


def constant(value: Constant, objects: Sequence[Any], found: Sequence[Any] = ()) -> Any:
    """The object that `value` means: names and references become objects, tuples go deep.

    Raises NotThere for a name that does not resolve in this process.
    """
    kind = value.__class__
    if kind is Named:
        return _named(value.module, value.qualname)
    if kind is Live:
        if value.index >= len(objects):
            raise NotThere(f"live object {value.index} is of another process")
        return objects[value.index]
    if kind is At:
        return found[value.index]
    if kind is tuple:
        return tuple(constant(part, objects, found) for part in value)
    return value


def number(value: Scalar, found: Sequence[Any]) -> int | float:
    """The value of a Scalar over sources. Raises NotThere where Python has none (1 / 0)."""
    try:
        return evaluate(value, Values(found))
    except (ArithmeticError, ValueError, TypeError) as why:
        raise NotThere(f"{value} has no value: {why}") from None


class Values(Mapping):
    """The objects of sources by the names of symbols: "s12" is that of source 12."""

    def __init__(self, found: Sequence[Any]):
        self._found = found

    def __getitem__(self, name: str) -> Any:
        value = self._found[int(name[1:])]
        if type(value) not in _VALUES:  # of no other class may an operator run
            raise NotThere(f"a {type_name(type(value))} is no number")
        return value

    def __iter__(self) -> Iterator[str]:
        return (f"s{place}" for place in range(len(self._found)))

    def __len__(self) -> int:
        return len(self._found)


def moving_numbers(trace: Trace) -> frozenset[int]:
    """The sources of numbers that each run has anew: outside ints and floats known by type alone.

    One that the program looked at later on has a guard on its value as well, and stays."""
    guards = [guard for node in trace.nodes for guard in node.guards]
    pinned = {guard.source for guard in guards if guard.kind == "value"}
    sizes = (k for k, source in enumerate(trace.sources) if source.kind in ("size", "stride"))
    return frozenset(
        guard.source for guard in guards
        if guard.kind == "type" and guard.expected in _NUMBER_TYPES and guard.source not in pinned
    ) | frozenset(sizes) - pinned


def carriers(trace: Trace, found: Sequence[Any], numbers: frozenset[int]) -> frozenset[int]:
    """The sources of tuples that `numbers` lie in: who changes such a number puts another tuple there."""
    above: set[int] = set()
    for number in numbers:
        parent = trace.sources[number].parent
        while parent >= 0 and parent not in above and type(found[parent]) is tuple:
            above.add(parent)
            parent = trace.sources[parent].parent
    return frozenset(above)


def replaced(trace: Trace, found: Sequence[Any]) -> frozenset[int]:
    """The sources of tensors (and of lists and tuples) that the node itself puts other ones in
    the place of, and what lies inside them: `self.state = f(self.state)`. Gradients, too: each
    backward makes others.

    found   the objects of all sources. Numbers are not among them: see `moving_numbers`.
    """
    (node,) = trace.nodes
    written: set[tuple[int, Any]] = set()
    for step in node.end.recipe.steps:
        written |= set(_written_places(step, node.end.recipe.steps))
    moving: set[int] = set()
    for number, source in enumerate(trace.sources):
        if source.kind == "attr" and source.key == "grad" and type(found[number]) is Tensor:
            moving.add(number)
        elif source.parent in moving:
            moving.add(number)
        if not written:
            continue
        above = trace.sources[source.parent] if source.parent >= 0 else source
        owner = above.parent if above.kind == "dict" else source.parent
        is_written = source.kind in _PARTS and (owner, source.key) in written
        if source.parent in moving or is_written and isinstance(found[number], _REPLACED):
            moving.add(number)
    return frozenset(moving)


_PARTS = frozenset(("item", "attr", "cell"))
_REPLACED = (Tensor, list, tuple)


def _written_places(step: Step, steps: Sequence[Step]) -> Iterator[tuple[int, Any]]:
    """(source, key) of what the step stores in an object from outside."""
    if step.kind not in _STORES or steps[step.args[0]].kind != "source":
        return
    owner = steps[step.args[0]].args[0]
    if step.kind == "set_cell":
        yield owner, None
    elif step.kind != "setitem":
        yield owner, step.args[1]
    elif steps[step.args[1]].kind == "const" and type(steps[step.args[1]].args[0]) in (int, str):
        yield owner, steps[step.args[1]].args[0]


_STORES = frozenset(("write", "setattr", "update_dict", "setitem", "set_cell"))
_NUMBERS = (int, float, bool)
_VALUES = (*_NUMBERS, str)
_NUMBER_TYPES = (Named("builtins", "int"), Named("builtins", "float"))
_NAMES = frozenset((Named, Live, At, tuple))


def type_name(cls: type) -> str:
    """The qualified name of a class, whatever its metaclass says."""
    return type.__dict__["__qualname__"].__get__(cls)


# ---------------------------------------------------------------------------- roots
def _argument(call: Call, index: int) -> Any:
    if index >= len(call.args):
        raise NotThere(f"only {len(call.args)} positional arguments")
    return call.args[index]


def _keyword(call: Call, name: str) -> Any:
    if name not in call.kwargs:
        raise NotThere(f"no keyword argument {name!r}")
    return call.kwargs[name]


def _named(module: str, qualname: str) -> Any:
    try:
        return find(module, qualname)
    except LookupError as why:
        raise NotThere(str(why)) from None


def _named_root(call: Call, key: Any) -> Any:
    return _named(key.module, key.qualname) if isinstance(key, Named) else _named(*key)


def _live_root(call: Call, key: Any) -> Any:
    return constant(key if isinstance(key, Live) else Live(key), call.objects)


def _slot(call: Call, key: Any) -> Any:
    raise Unsupported("slot", f"slot {key} has no value at the entry of a call")


ROOTS: Mapping[str, Callable[[Call, Any], Any]] = types.MappingProxyType({
    "entry": lambda call, key: call.target,
    "arg": _argument, "kwarg": _keyword, "named": _named_root, "live": _live_root, "slot": _slot,
})


# ---------------------------------------------------------------------------- steps
_ABSENT = object()
C_DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType)


def _entry(value: dict, key: Any) -> Any:
    """`value[key]`, no default made where there is none: `dict.__getitem__` asks `__missing__` of a subclass."""
    found = dict.get(value, key, _ABSENT)
    if found is _ABSENT:
        raise KeyError(key)
    return found


# Containers whose items can be read without user code, most derived first: class, item, length.
_CONTAINERS: tuple[tuple[type, Callable, Callable], ...] = (
    (collections.OrderedDict, _entry, dict.__len__),
    (dict, _entry, dict.__len__), (list, list.__getitem__, list.__len__),
    (tuple, tuple.__getitem__, tuple.__len__), (str, str.__getitem__, str.__len__),
    (set, None, set.__len__), (frozenset, None, frozenset.__len__),
    (types.MappingProxyType, types.MappingProxyType.__getitem__, types.MappingProxyType.__len__),
    (collections.deque, collections.deque.__getitem__, collections.deque.__len__),
    (bytes, bytes.__getitem__, bytes.__len__), (range, range.__getitem__, range.__len__),
)


_READ = types.MappingProxyType({row[0]: row[1] for row in _CONTAINERS})
_LENGTH = types.MappingProxyType({row[0]: row[2] for row in _CONTAINERS})


def _container(value: Any) -> tuple[type, Callable, Callable]:
    for row in _CONTAINERS:
        if issubclass(type(value), row[0]):
            return row
    raise NotThere(f"a {type_name(type(value))} is no builtin container")


def attribute(value: Any, name: str) -> Any:
    """`value.name`, where `name` is a C-level attribute of its type; else raises NotThere."""
    descriptor = raw_attribute(type(value), name, _ABSENT)
    if type(descriptor) not in C_DESCRIPTORS:
        raise NotThere(f"{type_name(type(value))} has no C-level attribute {name!r}")
    try:
        return descriptor.__get__(value, type(value))
    except AttributeError:
        raise NotThere(f"{type_name(type(value))} has no value for {name!r}") from None


def namespace(value: Any) -> Any:
    """`value.__dict__`, read without user code: a dict, or a class's read-only view of its own."""
    return attribute(value, "__dict__")


def item(value: Any, key: Any) -> Any:
    """`value[key]` of a builtin container, by the method of the builtin class. Keys that hash or
    compare in Python are found by identity: no guard runs the program's code."""
    if type(key) is not str and issubclass(type(value), dict) and _runs_python(type(key)):
        for known, content in dict.items(value):
            if known is key:
                return content
        raise NotThere(f"no such {type_name(type(key))} among the keys")
    read = _READ.get(type(value)) or _container(value)[1]
    if read is None:
        raise NotThere(f"a {type_name(type(value))} has no items by key")
    try:
        return read(value, key)
    except (KeyError, IndexError):
        raise NotThere(f"no item {key!r}") from None
    except TypeError as why:
        raise NotThere(str(why)) from None


def _runs_python(kind: type) -> bool:
    """Whether `hash` or `==` of instances of `kind` run Python code."""
    special = raw_attribute(kind, "__hash__"), raw_attribute(kind, "__eq__")
    return types.FunctionType in map(type, special)


def length(value: Any) -> int:
    """`len(value)` of a builtin container, by the method of the builtin class."""
    return (_LENGTH.get(type(value)) or _container(value)[2])(value)


def keys(value: Any) -> list[Any]:
    """The keys of a dict in its order, by the method of the builtin class."""
    if issubclass(type(value), collections.OrderedDict):
        return list(collections.OrderedDict.__iter__(value))
    if issubclass(type(value), dict):
        return list(dict.__iter__(value))
    if type(value) is types.MappingProxyType:
        return list(value)
    raise NotThere(f"a {type_name(type(value))} has no keys")


def _key(value: Any, index: int) -> Any:
    found = keys(value)
    if index >= len(found):
        raise NotThere(f"only {len(found)} keys")
    return found[index]


def class_attribute(cls: Any, name: str) -> Any:
    """The raw attribute that lookup along the MRO of type `cls` finds."""
    if not issubclass(type(cls), type):
        raise NotThere(f"a {type_name(type(cls))} is no type")
    found = raw_attribute(cls, name, _ABSENT)
    if found is _ABSENT:
        raise NotThere(f"no attribute {name!r} along the MRO of {type_name(cls)}")
    return found


def _closure(function: Any, index: int) -> Any:
    cells = attribute(function, "__closure__")
    if cells is None or index >= len(cells):
        raise NotThere(f"no closure cell {index}")
    return cells[index]


def _cell(value: Any, key: Any) -> Any:
    if type(value) is not types.CellType:
        raise NotThere(f"a {type_name(type(value))} is no cell")
    try:
        return value.cell_contents
    except ValueError:
        raise NotThere("the cell is empty") from None


def _size(value: Any, axis: int) -> int:
    return _of_tensor(value, axis).shape[axis]


def _stride(value: Any, axis: int) -> int:
    return _of_tensor(value, axis).stride(axis)


def _element(value: Any, key: Any) -> int | float | bool:
    if type(value) not in PLAIN_TENSORS or value.dim() or value.device.type != "cpu":
        raise NotThere(f"a {type_name(type(value))} is no number of the CPU")
    return value.item()


def _of_tensor(value: Any, axis: int) -> Tensor:
    """`value`, a tensor of no class of the user's, which has that axis."""
    if type(value) not in PLAIN_TENSORS or value.dim() <= axis:
        raise NotThere(f"a {type_name(type(value))} has no axis {axis}")
    return value




def _result(value: Any, asked: tuple) -> Any:
    """What `value`, or its method, gives for constant arguments: a call without effect."""
    name, *args = asked
    positional = [a for a in args if not (type(a) is tuple and len(a) == 3 and a[0] == "=")]
    keywords = {a[1]: a[2] for a in args if type(a) is tuple and len(a) == 3 and a[0] == "="}
    try:
        return (getattr(value, name) if name else value)(*positional, **keywords)
    except (AttributeError, TypeError, LookupError) as why:
        raise NotThere(f"it cannot be asked: {why}") from None


STEPS: Mapping[str, Callable[[Any, Any], Any]] = types.MappingProxyType({
    "attr": attribute,
    "dict": lambda value, key: namespace(value),
    "item": item,
    "key": _key,
    "type": lambda value, key: type(value),
    "class": class_attribute,
    "cell": _cell,
    "closure": _closure,
    "globals": lambda value, key: attribute(value, "__globals__"),
    "len": lambda value, key: length(value),
    "size": _size,
    "stride": _stride,
    "result": _result,
    "element": _element,
})
