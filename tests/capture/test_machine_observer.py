"""What the observer is told: reads, births, writes, calls; and how it gives up."""

import math
import types

import pytest

from preheat.base.errors import InternalError
from preheat.base.identity import identity
from preheat.capture.machine import run
from preheat.capture.observer import ABSENT, BIRTHS, GiveUp, Observer
from watching import Watching, hook_names


class Log(Watching):
    """Writes down every hook call; knows the objects it is given and what they lead to."""

    def __init__(self, *known):
        super().__init__()
        self.told = []
        self.known.update((identity(each), each) for each in known)

    def of(self, name: str) -> list:
        return [args for hook, args in self.told if hook == name]


def logging(name: str):
    original = getattr(Watching, name)

    def hook(self, *args):
        self.told.append((name, args))
        return original(self, *args)

    return hook


for hook_name in hook_names():
    setattr(Log, hook_name, logging(hook_name))


class Point:
    kind = "point"

    def __init__(self, x):
        self.x = x

    @property
    def double(self):
        return self.x * 2


def watch(function, *args, known=()) -> tuple:
    log = Log(*known)
    return run(function, args, {}, log), log


def test_attribute_found_and_class_read():
    p = Point(3)
    result, log = watch(lambda: (p.x, p.kind), known=[p])
    assert result == (3, "point")
    assert log.of("read_attribute") == [(p, p.__dict__, "x", 3)]
    assert log.of("miss_attribute") == [(p, p.__dict__, "kind")]
    assert (p, Point, "x", ABSENT) in log.of("read_class")
    assert (p, Point, "kind", "point") in log.of("read_class")


def test_unknown_objects_are_not_told():
    p = Point(3)
    _, log = watch(lambda: (p.x, [1][0], {1: 2}[1], len([])))
    for name in ("read_attribute", "miss_attribute", "read_item", "read_length", "read_whole"):
        assert log.of(name) == []


def test_property_is_entered():
    p = Point(3)
    result, log = watch(lambda: p.double, known=[p])
    assert result == 6
    assert Point.double.fget in [function for function, in log.of("entered")]
    assert log.of("read_attribute") == [(p, p.__dict__, "x", 3)]


def test_class_reads_are_told_once_per_state():
    p = Point(1)

    def reads():
        p.kind, p.kind
        Point.kind = "other"
        return p.kind

    try:
        result, log = watch(reads, known=[p])
    finally:
        Point.kind = "point"
    assert result == "other"
    told = [raw for _, cls, name, raw in log.of("read_class") if cls is Point and name == "kind"]
    assert told == ["point", "other"]
    assert log.of("write_attribute") == [(Point, "kind", "other")]


def test_globals_builtins_and_cells():
    captured = 5

    def reads():
        return math, len, captured

    _, log = watch(reads, known=reads.__closure__)
    space = reads.__globals__
    assert (space, "math", math) in log.of("read_global")
    assert (space, "len") in log.of("miss_global")
    assert (reads.__builtins__, "len", len) in log.of("read_global")
    assert log.of("read_cell") == [(reads.__closure__[0], 5)]


def test_container_reads():
    items, table = [1, 2], {"a": 1}

    def reads():
        try:
            table["b"]
        except KeyError:
            pass
        for _ in items:
            pass
        found = items[1], table["a"], table.get("q"), table.get("a"), [*items]
        return found, len(items), 1 in items, bool(table)

    _, log = watch(reads, known=[items, table])
    displayed = [(items, 0, 1), (items, 1, 2)]
    assert log.of("read_item") == [(items, 1, 2), (table, "a", 1), (table, "a", 1), *displayed]
    assert log.of("miss_item") == [(table, "b"), (table, "q")]
    assert log.of("read_length") == [(items, 2), (items, 2), (table, 1)]
    assert log.of("read_contains") == [(items, 1, True)]
    assert log.of("read_whole") == [(items,)]


def test_tests_of_type_identity_and_truth():
    o = object()

    def tests():
        return isinstance(o, (int, str)), issubclass(int, str), o is None, type(o), 1 if o else 2

    _, log = watch(tests)
    assert (o, (int, str), False) in log.of("test_type")
    assert (int, str, False) in log.of("test_subclass")
    assert (o, None, False) in log.of("test_identity")
    assert log.of("type_of") == [(o,)]
    assert log.of("test_truth") == [(o,)]


def test_births():
    def births():
        def inner(*rest, **named):
            return captured

        captured = [1]
        inner(1, k=2)
        shown = captured, {1: captured}, {captured[0]}, captured[0:1], inner
        return *shown, Point(1), iter(captured), (x for x in captured)

    made, log = watch(births)
    told = {id(value): kind for value, kind in log.of("born")}
    kinds = [told[id(each)] for each in made]
    assert kinds[:5] == ["list", "dict", "set", "result", "function"]
    assert kinds[5:] == ["instance", "iterator", "generator"]
    assert {"tuple", "dict", "cell"} <= set(told.values())
    assert set(told.values()) <= set(BIRTHS)


def test_writes_are_told_before_they_happen():
    p, items, table, seen = Point(1), [1], {}, []

    class Sees(Log):
        def write_attribute(self, owner, name, value):
            seen.append((name, owner.__dict__.get(name), value))

        def write_item(self, container, key, value):
            seen.append((key, len(container), value))

        def mutate(self, container, method, args, kwargs):
            seen.append((method, list(container), args))

        def write_cell(self, cell, value):
            seen.append(("cell", cell.cell_contents, value))

        def write_global(self, namespace, name, value):
            seen.append((name, namespace.get(name, ABSENT), value))

        def delete_attribute(self, owner, name):
            seen.append(("del", name, owner.__dict__[name]))

    n = 0

    def writes():
        nonlocal n
        global fresh_global
        p.x = 2
        table["k"] = 3
        items.append(4)
        items.extend([5])
        items[0] = 9
        n = 7
        fresh_global = 8
        del fresh_global
        del p.x

    run(writes, (), {}, Sees())
    assert seen == [
        ("x", 1, 2), ("k", 0, 3), ("append", [1], (4,)), ("extend", [1, 4], ([5],)), (0, 3, 9),
        ("cell", 0, 7), ("fresh_global", ABSENT, 8), ("fresh_global", 8, ABSENT), ("del", "x", 2),
    ]  # fmt: skip


def test_c_calls_and_operators_are_performed_by_the_observer():
    class Answers(Watching):
        def c_call(self, function, args, kwargs):
            return 42 if function is math.sqrt else function(*args, **kwargs)

        def operate(self, function, args):
            return "performed" if type(args[0]) is range else function(*args)

    def main():
        return math.sqrt(4), range(3)[1], math.floor(2.5)

    assert run(main, (), {}, Answers()) == (42, "performed", 2)


def test_native_functions_are_told():
    async def coroutine():
        return 1

    def marked():
        return 2

    class Marks(Log):
        def is_native(self, function):
            return function is marked

    def main():
        coroutine().close()
        return marked()

    log = Marks()
    assert run(main, (), {}, log) == 2
    assert log.of("native_function") == [(coroutine, "coroutine"), (marked, "marked")]


def test_give_up_performs_what_was_not_done_and_keeps_what_was():
    calls = []

    def effect(x):
        calls.append(x)
        return x

    class Before(Watching):
        def is_native(self, function):
            return function is effect

        def c_call(self, function, args, kwargs):
            if function is effect:
                raise GiveUp("opaque", "before")
            return function(*args, **kwargs)

        def gave_up(self, reason, detail, file, line):
            calls.append((reason, detail, line - main.__code__.co_firstlineno))

    class After(Before):
        def c_call(self, function, args, kwargs):
            result = function(*args, **kwargs)
            if function is effect:
                raise GiveUp("opaque", "after", result)
            return result

    def main():
        first = effect(1)
        return first + effect(2)

    assert run(main, (), {}, Before()) == 3
    assert calls == [("opaque", "before", 1), 1, 2]
    calls.clear()
    assert run(main, (), {}, After()) == 3
    assert calls == [1, ("opaque", "after", 1), 2]


def test_after_give_up_no_hook_is_called():
    class Quits(Log):
        def entered(self, function):
            if function.__name__ == "inner":
                raise GiveUp("enough")

    def inner(x):
        return [x, math.sqrt(x)]

    log = Quits()
    assert run(lambda: inner(4) + inner(9), (), {}, log) == [4, 2.0, 9, 3.0]
    assert [hook for hook, _ in log.told][-1] == "gave_up"
    assert sum(hook == "gave_up" for hook, _ in log.told) == 1


def test_bytecode_limit():
    log = Log()
    log.bytecode_limit = 100

    def count():
        total = 0
        for i in range(1000):
            total += i
        return total

    assert run(count, (), {}, log) == 499500
    (reason, detail, file, line), = log.of("gave_up")
    assert (reason, detail, file) == ("bytecodes", "100", __file__)


def test_a_fault_of_the_observer_is_not_the_programs():
    class Faulty(Watching):
        def entered(self, function):
            if function.__name__ == "inner":
                raise KeyError("fault")

    def inner():
        return 1

    def main():
        try:
            return inner()
        except Exception:
            return "hidden"

    with pytest.raises(InternalError, match="observer failed: KeyError"):
        run(main, (), {}, Faulty())


def test_generators_outlive_the_run():
    def numbers():
        yield 1
        yield 2

    log = Log()
    generator = run(numbers, (), {}, log)
    assert type(generator) is types.GeneratorType
    told = len(log.told)
    assert list(generator) == [1, 2]
    assert len(log.told) == told


def test_deep_recursion_needs_no_native_stack():
    def depth(n):
        return 0 if n == 0 else 1 + depth(n - 1)

    assert run(depth, (880,), {}, Observer()) == 880
