"""Each kind of guard and source on its own: holds, then fails after one change, in both checkers."""

import abc
import collections
import functools
import gc
import sys
import threading
import types
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from consult import Book
from native_rows import native_check

from preheat.base.digest import code_digest
from preheat.base.errors import Unsupported
from preheat.bridge.tensors import tensor_facts
from preheat.ir.trace import At, Guard, Named, Source
from preheat.run.check import Checker, Failure
from preheat.run.layout import layout
from preheat.run.resolve import Miss, resolve
from preheat.run.rows import bind_rows


@dataclass
class Case:
    """Guards about a call, changes that keep them, a change that breaks one, and who can judge."""

    book: Book
    target: Any = None
    args: list = None
    kwargs: dict = None
    keep: Callable[[], Any] = lambda: None
    spoil: Callable[[], Any] = lambda: None
    is_native: bool = True

    def run(self) -> None:
        self.args, self.kwargs = self.args or [], self.kwargs or {}
        checker = Checker(self.book.trace(), self.target, self.book.objects)
        rows = self.bind(checker)
        assert bool(rows.in_python) is not self.is_native, rows.in_python
        assert self.passes(rows)
        self.keep()
        assert checker.check(self.args, self.kwargs) is None
        rows = self.bind(checker)
        assert self.passes(rows)
        self.spoil()
        assert isinstance(checker.check(self.args, self.kwargs), Failure)
        assert not self.passes(rows)

    @property
    def arguments(self) -> tuple:
        return (*self.args, *self.kwargs.values())

    def bind(self, checker):
        found = checker.resolve(self.args, self.kwargs)
        assert not isinstance(found, Failure), str(found)
        return bind_rows(checker, found, self.arguments)

    def passes(self, rows) -> bool:
        row = native_check(rows, self.arguments)
        if rows.is_python(row):
            return rows.check_python(self.args, self.kwargs) is None
        return row == -1


CASES: dict[str, Callable[[], Case]] = {}


def case(make: Callable[[], Case]) -> Callable[[], Case]:
    CASES[make.__name__] = make
    return make


@pytest.mark.parametrize("name", CASES)
def test_kind(name):
    CASES[name]().run()


def on_target(target, kind, expected, *steps) -> Book:
    """A book with one guard at the end of `steps` from the entry."""
    book = Book()
    here = book.source(-1, "entry")
    for step in steps:
        here = book.source(here, *step)
    book.guard(here, kind, expected(book) if callable(expected) else expected)
    return book


class Plain:
    pass


# ---------------------------------------------------------------------------- sources
@case
def key_of_a_dict():
    d = {"a": 1, "b": 2}
    return Case(
        on_target(d, "value", "b", ("key", 1)),
        d,
        keep=lambda: d.update(a=3),
        spoil=lambda: d.update(c=d.pop("b")),
    )


@case
def key_of_an_ordered_dict():
    d = collections.OrderedDict(a=1, b=2)
    return Case(
        on_target(d, "value", "b", ("key", 1)), d, spoil=lambda: d.move_to_end("a"), is_native=False
    )


@case
def item_of_a_deque():
    d = collections.deque([1, 2])
    return Case(
        on_target(d, "value", 2, ("item", 1)), d, spoil=lambda: d.rotate(1), is_native=False
    )


@case
def item_of_a_string():
    d = {"name": "abc"}
    book = on_target(d, "value", "b", ("item", "name"), ("item", 1))
    return Case(
        book, d, keep=lambda: d.update(name="".join("abc")), spoil=lambda: d.update(name="axc")
    )


@case
def length_of_a_list():
    x = [1, 2]
    return Case(
        on_target(x, "value", 2, ("len",)), x, keep=lambda: x.reverse(), spoil=lambda: x.append(3)
    )


@case
def length_of_a_dict():
    x = {"a": 1}
    return Case(
        on_target(x, "value", 1, ("len",)),
        x,
        keep=lambda: x.update(a=2),
        spoil=lambda: x.update(b=3),
    )


@case
def length_of_a_set():
    x = {1}
    return Case(on_target(x, "value", 1, ("len",)), x, spoil=lambda: x.add(3))


@case
def named_global():
    module = types.ModuleType("named_world")
    module.value = 5
    return _named(
        module,
        Named("named_world", "value"),
        lambda: setattr(module, "other", 1),
        lambda: setattr(module, "value", 6),
    )


@case
def named_class_attribute():
    module = types.ModuleType("named_world")
    module.Cls = type("Cls", (Plain,), {"value": 5})
    return _named(
        module, ("named_world", "Cls.value"), lambda: setattr(module.Cls, "other", 1),
        lambda: setattr(module.Cls, "value", 6),
    )


@case
def named_module_replaced():

    module, other = types.ModuleType("named_world"), types.ModuleType("named_world")
    module.value = 5
    return _named(
        module,
        Named("named_world", "value"),
        lambda: None,
        lambda: sys.modules.update(named_world=other),
    )


def _named(module, key, keep, spoil):

    sys.modules[module.__name__] = module
    book = Book()
    book.guard(book.source(-1, "named", key), "value", 5)
    return Case(book, keep=keep, spoil=spoil)


@case
def live_root():
    book, value = Book(), [1]
    book.live(value)
    book.guard(book.source(book.source(-1, "live", 0), "item", 0), "value", 1)
    return Case(book, spoil=lambda: value.__setitem__(0, 2))


@case
def namespace_of_a_class():
    cls = type("Cls", (), {"value": 1})
    book = on_target(cls, "value", 1, ("dict",), ("item", "value"))
    book.guard(book.source(book.source(-1, "entry"), "dict"), "absent", "other")
    return Case(
        book, cls, keep=lambda: setattr(cls, "third", 1), spoil=lambda: setattr(cls, "other", 2)
    )


@case
def name_of_a_class():
    cls = type("Cls", (), {})
    return Case(
        on_target(cls(), "value", "Cls", ("type",), ("attr", "__name__")),
        cls(),
        spoil=lambda: setattr(cls, "__name__", "X"),
    )


@case
def name_of_a_builtin_class():
    book = on_target(1, "value", "int", ("type",), ("attr", "__name__"))
    box = [1]
    book = Book()
    book.guard(
        book.source(book.source(book.source(-1, "arg", 0), "type"), "attr", "__name__"),
        "value",
        "int",
    )
    result = Case(book, args=box)
    result.spoil = lambda: result.args.__setitem__(0, 2.0)
    return result


@case
def method_parts():
    class Owner:
        def method(self):
            return 1

    method = Owner().method
    book = on_target(method, "type", lambda b: b.live(Owner), ("attr", "__self__"))
    book.guard(book.source(0, "attr", "__func__"), "code", code_digest(Owner.method.__code__))
    other = Owner.method.__code__.replace(co_consts=(None, 2))
    return Case(book, method, spoil=lambda: setattr(Owner.method, "__code__", other))


@case
def parts_of_a_partial():
    items = [1]
    part = functools.partial(len, items)
    book = on_target(part, "value", 1, ("attr", "args"), ("item", 0), ("item", 0))
    return Case(book, part, spoil=lambda: items.__setitem__(0, 2))


@case
def computed_attribute():
    """A C-level attribute that is no stored pointer is read in Python."""
    tensor = torch.zeros(2, 3)
    book = on_target(tensor, "value", 0, ("attr", "_version"))
    return Case(book, tensor, spoil=lambda: tensor.add_(1), is_native=False)


# ---------------------------------------------------------------------------- claims
@case
def identity_of_arguments():
    book, x, y = Book(), torch.zeros(2), torch.zeros(2)
    first, second = book.source(-1, "arg", 0), book.source(-1, "arg", 1)
    book.guard(second, "is", At(first))
    result = Case(book, args=[x, x])
    result.keep = lambda: result.args.__setitem__(slice(None), [y, y])
    result.spoil = lambda: result.args.__setitem__(0, x)
    return result


@case
def distinct_arguments():
    book, x, y = Book(), torch.zeros(2), torch.zeros(2)
    first, second = book.source(-1, "arg", 0), book.source(-1, "arg", 1)
    book.guard(second, "isnot", At(first))
    result = Case(book, args=[x, y])
    result.spoil = lambda: result.args.__setitem__(1, x)
    return result


@case
def argument_is_an_object_of_the_model():
    book, box = Book(), [torch.zeros(2)]
    item = book.source(book.source(-1, "entry"), "item", 0)
    book.guard(book.source(-1, "arg", 0), "is", At(item))
    result = Case(book, box, args=[box[0]])
    result.keep = lambda: (box.__setitem__(0, torch.ones(2)), result.args.__setitem__(0, box[0]))
    result.spoil = lambda: result.args.__setitem__(0, torch.ones(2))
    return result


@case
def argument_is_not_an_object_of_the_model():
    book, box = Book(), [torch.zeros(2)]
    item = book.source(book.source(-1, "entry"), "item", 0)
    book.guard(book.source(-1, "arg", 0), "isnot", At(item))
    result = Case(book, box, args=[torch.zeros(2)])
    result.keep = lambda: result.args.__setitem__(0, torch.zeros(2))
    result.spoil = lambda: result.args.__setitem__(0, box[0])
    return result


@case
def contains_in_a_dict():
    d = {"a": 1}
    book = on_target(d, "contains", ("a", True))
    book.guard(0, "contains", ("b", False))
    return Case(book, d, keep=lambda: d.update(c=1), spoil=lambda: d.update(b=1))


@case
def contains_in_a_set():
    s = {1, 2}
    return Case(
        on_target(s, "contains", (1, True)), s, keep=lambda: s.add(5), spoil=lambda: s.remove(1)
    )


@case
def contains_in_a_frozenset():
    box = {"s": frozenset((1, 2))}
    book = on_target(box, "contains", (1, True), ("item", "s"))
    return Case(
        book,
        box,
        keep=lambda: box.update(s=frozenset((1, 3))),
        spoil=lambda: box.update(s=frozenset((2,))),
    )


@case
def large_set():
    s = set(range(1000))
    return Case(on_target(s, "contains", (7, True)), s, spoil=lambda: s.remove(7), is_native=False)


@case
def no_attribute():
    cls = type("Cls", (), {})
    value = cls()
    return Case(
        on_target(value, "noattr", "size"),
        value,
        keep=lambda: setattr(cls, "x", 1),
        spoil=lambda: setattr(cls, "size", 1),
    )


@case
def no_attribute_of_a_class():
    cls = type("Cls", (), {})
    return Case(on_target(cls, "noattr", "size"), cls, spoil=lambda: setattr(cls, "size", 1))


@case
def order_of_bases():
    a, b = type("A", (), {}), type("B", (), {})
    cls = type("Cls", (a, b), {})
    book = on_target(cls, "mro", lambda book: tuple(book.live(c) for c in cls.__mro__))
    return Case(
        book, cls, keep=lambda: setattr(a, "x", 1), spoil=lambda: setattr(cls, "__bases__", (b, a))
    )


@case
def instance_of_an_abstract_class():
    cls = type("Cls", (), {})
    value = cls()
    book = on_target(value, "isinstance", lambda b: (b.live(Mapping), False))
    return Case(book, value, keep=lambda: setattr(cls, "x", 1), spoil=lambda: Mapping.register(cls))


@case
def instance_by_a_hook_on_methods():
    cls = type("Cls", (), {})
    value = cls()
    book = on_target(value, "isinstance", lambda b: (b.live(collections.abc.Sized), False))

    def spoil():
        cls.__len__ = lambda self: 0
        Mapping.register(type("Other", (), {}))  # CPython remembers its answer until then

    return Case(book, value, spoil=spoil)


@case
def instance_by_a_hook_of_the_user():
    answers = [False]

    class Hook(abc.ABC):
        @classmethod
        def __subclasshook__(cls, other):
            return answers[0]

    value = Plain()
    book = on_target(value, "isinstance", lambda b: (b.live(Hook), False))

    def spoil():
        answers[0] = True
        Mapping.register(type("Other", (), {}))  # empties the caches of abstract classes

    return Case(book, value, spoil=spoil, is_native=False)


@case
def instance_of_a_tuple_of_classes():
    a, b = type("A", (), {}), type("B", (), {})
    cls = type("Cls", (b,), {})
    value = cls()
    book = on_target(value, "isinstance", lambda book: ((book.live(a), book.live(b)), True))
    return Case(
        book,
        value,
        keep=lambda: setattr(cls, "__bases__", (a,)),
        spoil=lambda: setattr(value, "__class__", Plain),
    )


@case
def values_inside_a_tuple():
    box = {"t": (1, -0.0, (True, "x"))}
    book = on_target(box, "value", (1, -0.0, (True, "x")), ("item", "t"))
    return Case(
        book,
        box,
        keep=lambda: box.update(t=(1, float("-0.0"), (True, "x"))),
        spoil=lambda: box.update(t=(1, 0.0, (True, "x"))),
    )


# ---------------------------------------------------------------------------- arguments that are objects
@case
def function_as_argument():
    def first(x):
        return x

    def second(x):
        return x + 1

    book = Book()
    book.guard(book.source(-1, "arg", 0), "code", code_digest(first.__code__))
    result = Case(book, args=[first])
    result.keep = lambda: result.args.__setitem__(0, types.FunctionType(first.__code__, {}))
    result.spoil = lambda: result.args.__setitem__(0, second)
    return result


@case
def classes_in_a_list_argument():
    a, b, same = (type("A", (), {"size": n}) for n in (1, 2, 1))
    book = Book()
    here = book.source(book.source(-1, "arg", 0), "item", 0)
    book.guard(here, "class", ("size", 1))
    book.guard(book.source(here, "attr", "__name__"), "value", "A")
    result = Case(book, args=[[a]])
    result.keep = lambda: result.args.__setitem__(0, [same])
    result.spoil = lambda: result.args.__setitem__(0, [b])
    return result


@case
def functions_in_a_tuple_argument():
    def first():
        return 1

    def second():
        return 2

    book = Book()
    here = book.source(book.source(-1, "arg", 0), "item", 0)
    book.guard(here, "code", code_digest(first.__code__))
    book.guard(book.source(here, "attr", "__name__"), "value", "first")
    result = Case(book, args=[(first,)])
    result.keep = lambda: result.args.__setitem__(0, (first,))
    result.spoil = lambda: result.args.__setitem__(0, (second,))
    return result


@case
def instances_in_a_list_argument():
    book, value = Book(), Plain()
    value.size = 2
    here = book.source(book.source(-1, "arg", 0), "item", 0)
    book.guard(here, "type", book.live(Plain))
    book.guard(book.source(book.source(here, "dict"), "item", "size"), "value", 2)
    result = Case(book, args=[[value]])
    other = Plain()
    other.size = 3
    result.keep = lambda: result.args.__setitem__(0, [value])
    result.spoil = lambda: result.args[0].__setitem__(0, other)
    return result


@case
def dict_as_argument():
    result = _batch()
    result.keep = lambda: result.args.__setitem__(0, {"x": torch.ones(2), "n": 1})
    result.spoil = lambda: result.args.__setitem__(0, {"x": torch.zeros(3), "n": 1})
    return result


def _batch() -> Case:
    book, batch = Book(), {"x": torch.zeros(2), "n": 1}
    here = book.source(-1, "arg", 0)
    book.guard(here, "type", book.live(dict))
    book.guard(here, "keys", ("x", "n"))
    book.guard(here, "absent", "y")
    book.guard(book.source(here, "item", "x"), "tensor", tensor_facts(batch["x"]))
    book.guard(book.source(here, "item", "n"), "value", 1)
    return Case(book, args=[batch])


DICT_CHANGES = {
    "value": {"x": torch.zeros(2), "n": 2}, "key added": {"x": torch.zeros(2), "n": 1, "y": 0},
    "key missing": {"n": 1}, "another key": {"x": torch.zeros(2), "m": 1}, "order": {"n": 1, "x": torch.zeros(2)},
    "int key": {0: torch.zeros(2), "n": 1}, "empty": {}, "no dict": [1, 2], "subclass": collections.OrderedDict(x=1, n=1),
    "many keys": {f"k{i}": i for i in range(100)}, "value of another type": {"x": 1, "n": torch.zeros(2)},
}


@pytest.mark.parametrize("name", DICT_CHANGES)
def test_dict_argument(name):
    result = _batch()
    result.spoil = lambda: result.args.__setitem__(0, DICT_CHANGES[name])
    result.run()


def test_fresh_dicts_need_no_slow_path():
    result = _batch()
    checker = Checker(result.book.trace(), None, result.book.objects)
    result.kwargs = {}
    rows = result.bind(checker)
    holed = {"z": 0, "x": torch.zeros(2), "n": 1}
    del holed["z"]  # leaves a hole in the table: equal, but of another shape
    for value, passes in (
        ({"x": torch.ones(2), "n": 1}, True),
        (dict(x=torch.ones(2), n=1), True),
        (holed, False),
    ):
        result.args = [value]
        assert (native_check(rows, [value]) == -1) is passes
        assert checker.check([value], {}) is None


@case
def instance_as_argument():
    book, value = Book(), Plain()
    value.size, value.parts = 2, [1, 2]
    here = book.source(-1, "arg", 0)
    book.guard(here, "type", book.live(Plain))
    space = book.source(here, "dict")
    book.guard(book.source(space, "item", "size"), "value", 2)
    book.guard(book.source(book.source(space, "item", "parts"), "item", 1), "value", 2)
    result = Case(book, args=[value])

    def keep():
        other = Plain()
        other.size, other.parts = 2, [7, 2]
        result.args[0] = other

    result.keep = keep
    result.spoil = lambda: result.args[0].parts.__setitem__(1, 3)
    return result


@case
def keywords_follow_the_arguments():
    book = Book()
    book.guard(book.source(-1, "arg", 0), "value", 1)
    book.guard(book.source(-1, "kwarg", "a"), "value", 2)
    book.guard(book.source(-1, "kwarg", "b"), "value", 3.0)
    result = Case(book, args=[1], kwargs={"a": 2, "b": 3.0})
    result.spoil = lambda: result.kwargs.update(b=4.0)
    return result


@case
def tensor_without_attributes_as_argument():
    book = Book()
    here = book.source(-1, "arg", 0)
    book.guard(here, "type", book.live(torch.Tensor))
    book.guard(book.source(here, "dict"), "absent", "sum")
    book.guard(book.source(here, "dict"), "absent", "mean")
    result = Case(book, args=[torch.zeros(2)], is_native=layout().instance is not None)
    result.keep = lambda: result.args.__setitem__(0, torch.ones(3))
    result.spoil = lambda: setattr(result.args[0], "mean", 1)
    return result


@case
def tensor_with_attributes_as_argument():
    result = tensor_without_attributes_as_argument()
    result.args[0].other = 1

    def keep():
        result.args[0] = torch.ones(3)
        result.args[0].another = 1

    result.keep = keep
    return result


# ---------------------------------------------------------------------------- memory of tensors
def _two_tensors(first, second) -> tuple[Book, list]:
    book = Book()
    for index, tensor in enumerate((first, second)):
        book.guard(book.source(-1, "arg", index), "tensor", tensor_facts(tensor))
    return book, [first, second]


@case
def no_overlap():
    memory = torch.zeros(8)
    book, args = _two_tensors(memory[:4], memory[4:])
    book.guards.insert(0, Guard(-1, "alias", ((0,), (1,))))
    result = Case(book, args=args)
    result.keep = lambda: result.args.__setitem__(slice(None), [torch.zeros(4), torch.zeros(4)])
    result.spoil = lambda: result.args.__setitem__(slice(None), [memory[:4], memory[3:7]])
    return result


@case
def overlap():
    memory = torch.zeros(8)
    book, args = _two_tensors(memory[:4], memory[2:6])
    book.guard(-1, "alias", ((0, 1),))
    result = Case(book, args=args, is_native=False)
    result.spoil = lambda: result.args.__setitem__(1, memory[4:])
    return result


@case
def groups_of_memory():
    """Two tensors share memory without sharing a storage: both came from one array."""
    memory = torch.zeros(16)
    array = memory.numpy()
    book = Book()
    args = [memory[:4], torch.from_numpy(array[2:6]), memory[8:12]]
    for index, tensor in enumerate(args):
        book.guard(book.source(-1, "arg", index), "tensor", tensor_facts(tensor))
    book.guard(-1, "alias", ((0, 1), (2,)))
    result = Case(book, args=args, is_native=False)
    result.spoil = lambda: result.args.__setitem__(2, torch.from_numpy(array[5:9]))
    return result


@case
def disjoint_buffers_and_arguments():
    cache = torch.zeros(16)
    box = {"cache": cache}
    book = Book()
    here = book.source(book.source(-1, "entry"), "item", "cache")
    book.guard(here, "tensor", tensor_facts(cache))
    arg = book.source(-1, "arg", 0)
    book.guard(arg, "tensor", tensor_facts(torch.zeros(4)))
    book.guard(-1, "alias", ((here,), (arg,)))
    result = Case(book, box, args=[torch.zeros(4)])
    result.keep = lambda: result.args.__setitem__(0, torch.ones(4))
    result.spoil = lambda: result.args.__setitem__(0, torch.from_numpy(cache.numpy())[4:8])
    return result


# ---------------------------------------------------------------------------- beyond the table
def test_ambient_state_is_the_calling_threads():
    book = Book()
    book.ambient()
    checker = Checker(book.trace(), None, book.objects)
    rows = bind_rows(checker, checker.resolve((), {}), ())
    seen = {}

    def other():
        seen["as here"] = native_check(rows, ())
        with torch.no_grad():
            seen["no_grad"] = native_check(rows, ())

    with torch.no_grad():
        assert native_check(rows, ()) != -1
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert seen["as here"] == -1 and seen["no_grad"] != -1


def test_resolve_runs_no_user_code():
    class Loud(dict):
        def __getattribute__(self, name):
            raise AssertionError(name)

        def __getitem__(self, key):
            raise AssertionError(key)

        __contains__ = __len__ = __iter__ = __getattr__ = __getitem__

    value = Loud(a=1)
    book = Book()
    entry = book.source(-1, "entry")
    for step in (("item", "a"), ("dict",), ("len",), ("type",), ("key", 0), ("attr", "__class__")):
        book.source(entry, *step)
    assert resolve(book.trace(), value, (), {}) == [value, 1, {}, 1, Loud, "a", Loud]


def test_misses_say_what_is_not_there():
    book = Book()
    book.source(book.source(-1, "arg", 0), "item", "weight")
    assert resolve(book.trace(), None, (), {}) == Miss(0, "only 0 positional arguments")
    assert resolve(book.trace(), None, ({},), {}) == Miss(1, "no item 'weight'")
    assert resolve(book.trace(), None, (Plain(),), {}) == Miss(1, "a Plain is no builtin container")
    checker = Checker(book.trace(), None)
    assert str(checker.check(({},), {})) == "arg0['weight']: no item 'weight'"
    text = "the call: 1 positional arguments and keywords ('a',), captured with 1 and ()"
    assert str(checker.check(({},), {"a": 1})) == text


def test_properties_are_no_c_level_attributes():
    class Owner:
        @property
        def size(self):
            raise AssertionError

    book = Book()
    book.source(book.source(-1, "entry"), "attr", "size")
    assert (
        resolve(book.trace(), Owner(), (), {}).why
        == f"{Owner.__qualname__} has no C-level attribute 'size'"
    )


def test_unknown_kinds_are_refused():
    book = Book()
    book.guard(book.source(-1, "entry"), "telepathy", 1)
    with pytest.raises(Unsupported):
        Checker(book.trace(), None)


def test_rows_keep_no_argument_alive():

    book, value = Book(), Plain()
    value.tensor, value.parts = torch.zeros(3), [torch.zeros(2)]
    book.consult_call(None, (value, [value.tensor]))
    checker = Checker(book.trace(), None, book.objects)
    args = (value, [value.tensor])
    rows = bind_rows(checker, checker.resolve(args, {}), args)
    gone = weakref.ref(value.tensor), weakref.ref(value.parts[0]), weakref.ref(value)
    del args, value
    book.objects.clear()
    checker.objects = ()
    gc.collect()
    assert rows.count and [ref() for ref in gone] == [None, None, None]


def test_source_noun_is_what_the_book_makes():
    assert Book().source(-1, "entry") == 0 and Source(-1, "entry") == Source(-1, "entry", None)


def test_repairs_do_not_hide_ambient_changes():
    """The level of forward AD is a module's global: a row of that dict has two readers."""
    forward_ad = torch.autograd.forward_ad
    book = Book()
    space = book.source(book.source(-1, "named", Named(forward_ad.__name__, "")), "dict")
    book.guard(space, "absent", "not_there")
    book.ambient()
    checker = Checker(book.trace(), None, book.objects)
    rows = bind_rows(checker, checker.resolve((), {}), ())
    with forward_ad.dual_level():
        row = native_check(rows, ())
        assert row != -1 and not rows.repair(row)
    assert checker.check((), {}) is None


def test_a_weak_reference_is_followed_and_keeps_nothing_alive():

    value = Plain()
    box = {"ref": weakref.ref(value)}
    book = on_target(box, "type", lambda b: b.live(Plain), ("item", "ref"), ("result", ("",)))
    checker = Checker(book.trace(), box, book.objects)
    rows = bind_rows(checker, checker.resolve((), {}), ())
    assert native_check(rows, ()) == -1 and not rows.in_python
    del value
    assert native_check(rows, ()) != -1 and isinstance(checker.check((), {}), Failure)
