"""Any Python under chains: the language's own constructs do what they do, on every call.

Each program meets the outside in its middle (a host call, a branch on a value, a write), so that
captures, replays and resumes all go through the construct under test.
"""

import asyncio
import contextlib
import dataclasses
import enum
import functools
import os
import re
import sys
import threading
import time
import typing
from collections import Counter, defaultdict, namedtuple

import pytest
import torch

import preheat
from preheat.base.events import bus
from same import Program, is_enabled, same_program

X = torch.linspace(-1.0, 1.2, 8)
LOG: list = []


@preheat.disable
def note(*what):
    """A host step that shows in what is printed."""
    print(*what)
    return len(what)


@preheat.disable
def fail(kind, *args):
    raise kind(*args)


def check(fn, *more, calls=6, why=""):
    """`fn(x, *more)` on x of changing sign and, later, dtype; the compiled side really is compiled."""

    def make():
        LOG.clear()
        cached_scale.cache_clear()

        def flip(program):
            program.args = (-program.args[0], *program.args[1:])

        def wide(program):
            program.args = (program.args[0].double(), *program.args[1:])

        return Program(fn, (X.clone() + 0.1, *more), watch=LOG, between={2: flip, 3: flip, 4: wide})

    eager = []
    unsubscribe = bus.subscribe(
        lambda event: None if event.data.get("goes_on") else eager.append(event.data), {"break"})
    try:
        seen = same_program(make, calls=calls)
    finally:
        unsubscribe()
    if is_enabled():
        assert seen.counters["fallbacks"] == 0
        if why is not None:
            assert not eager, eager
            assert seen.counters["captures"] >= 1, seen
            assert seen.counters["interpreted"] == 0, seen
    return seen


# ---------------------------------------------------------------------------- functions
def closures(x):
    total = 0

    def add(n):
        nonlocal total
        total += n
        return lambda: total * x

    first = add(1)
    note(total)
    second = add(2)
    if x.sum() > 0:
        add(10)
    return first() + second(), total


def closures_returned(x):
    state = {"n": 0}

    def step(y):
        state["n"] += 1
        return y * state["n"] + x

    note("made")
    step(x)
    return step(x), state


def arguments(x):
    def take(a, /, b=2, *rest, c, d=4, **more):
        note(a, b, rest, c, d, sorted(more))
        return x * a + b + sum(rest) + c + d + sum(more.values())

    rows = (1, 2, 3, 4)
    given = {"c": 5, "e": 6}
    return take(*rows, **given), take(1, c=1), take(*rows[:1], **given, d=1)


def bad_arguments(x):
    def take(a, *, b):
        return a + b

    messages = []
    for args, kwargs in (((), {}), ((1,), {}), ((1, 2), {"b": 1}), ((1,), {"b": 1, "c": 2})):
        try:
            note(*args)
            take(*args, **kwargs)
        except TypeError as error:
            messages.append(str(error))
    return x * 2, messages


def decorated(x):
    def counted(fn):
        @functools.wraps(fn)
        def wrapper(*args, **kwargs):
            wrapper.calls += 1
            note(wrapper.__name__, wrapper.calls)
            return fn(*args, **kwargs)

        wrapper.calls = 0
        return wrapper

    @counted
    def double(y):
        "Doubles."
        return y * 2

    return double(double(x)), double.calls, double.__doc__, double.__wrapped__(x)


def recursive(x, n=5):
    if n == 0:
        return x
    if n % 2:
        note(n)
    return recursive(x * 0.5 + n, n - 1)


def recursive_on_values(x):
    if x.norm() < 0.5:
        return x, 0
    y, n = recursive_on_values(x * 0.6)
    return y + 0.1, n + 1


def comprehensions(x):
    rows = [x * i for i in range(4) if note(i) and i != 2]
    table = {i: row.sum() for i, row in enumerate(rows)}
    kinds = {type(row).__name__ for row in rows}
    nested = [[a * b for a in (1, 2)] for b in (3, 4)]
    lazy = sum(row.max() for row in rows)
    return rows, table, kinds, nested, lazy


def walrus_and_star(x):
    first, *middle, last = [x * i for i in range(5)]
    note(len(middle))
    while (y := first + last).sum() > 100:
        last = y
    return y, [*middle, first], {**{"a": x}, "b": last}


# ---------------------------------------------------------------------------- generators
def generator_whole(x):
    def rows(n):
        for i in range(n):
            got = yield x * i
            if got:
                note("got", got)
        return n

    def outer():
        n = yield from rows(3)
        yield x + n

    return list(outer())


def generator_sent(x):
    def accumulate():
        total = x * 0
        while True:
            value = yield total
            if value is None:
                return "done"
            total = total + value

    made = accumulate()
    next(made)
    for i in range(3):
        result = made.send(x * i)
        note(i)
    try:
        made.send(None)
    except StopIteration as stop:
        return result, stop.value


def generator_closed(x):
    log = []

    def rows():
        try:
            yield x
            yield x * 2
        finally:
            log.append("closed")

    made = rows()
    y = next(made)
    note("between")
    made.close()
    for z in rows():
        break
    return y + z, log


def generator_thrown(x):
    def rows():
        while True:
            try:
                yield x
            except ValueError as error:
                yield x * 2, str(error)

    made = rows()
    next(made)
    result = made.throw(ValueError("in"))
    note("thrown")
    return result, next(made)


def generator_in_the_middle(x):
    def rows():
        for i in range(4):
            yield x * i

    made = rows()
    first = next(made)
    note("half")
    if first.sum() > -1:
        second = next(made)
    return [first, second, *made]


# ---------------------------------------------------------------------------- match
def matched(x, command):
    match command:
        case {"op": "scale", "by": int(n) | float(n), **rest}:
            y = x * n
            note("scale", n, sorted(rest))
        case ("add", n) if n > 1:
            y = x + n
            note("add", n)
        case [first, *rest]:
            y = x * len(rest)
            note(first)
        case Color.RED | Color.BLUE as color:
            y = x - color.value
        case Point2(x=0, y=b):
            y = x * b
        case None:
            y = x
        case _:
            y = x * 0
    return y


class Color(enum.Enum):
    RED = 1
    BLUE = 2
    GREEN = 3

    @property
    def half(self):
        return self.value / 2

    @classmethod
    def named(cls, name):
        return cls[name.upper()]


class Mode(enum.IntFlag):
    A = 1
    B = 2


@dataclasses.dataclass
class Point2:
    x: float
    y: float = 2.0

    def __post_init__(self):
        self.total = self.x + self.y


COMMANDS = [
    {"op": "scale", "by": 3, "more": 1}, ("add", 2), ("add", 0), ["a", "b", "c"], Color.RED,
    Color.GREEN, Point2(0, 5.0), None, 7,
]


@pytest.mark.parametrize("number", range(len(COMMANDS)))
def test_match(number):
    check(matched, COMMANDS[number])


# ---------------------------------------------------------------------------- functools
@functools.singledispatch
def scaled(value, x):
    return x


@scaled.register
def _(value: int, x):
    return x * value


@scaled.register
def _(value: str, x):
    return x + len(value)


@functools.lru_cache(maxsize=None)
def cached_scale(n):
    LOG.append(("computed", n))
    return n * 2


class Lazy:
    def __init__(self, x):
        self.x = x

    @functools.cached_property
    def norm(self):
        LOG.append("norm")
        return self.x.norm()

    @functools.singledispatchmethod
    def take(self, value):
        return self.x

    @take.register
    def _(self, value: int):
        return self.x * value

    scale = functools.partialmethod(lambda self, a, b: self.x * a + b, 3)


def functools_all(x):
    add = functools.partial(lambda a, b, c=1: a + b * c, x, c=3)
    y = add(2)
    note("partial")
    y = y + scaled(3, x) + scaled("four", x) + scaled(None, x)
    lazy = Lazy(x)
    note("lazy")
    y = y + lazy.norm + lazy.norm + lazy.take(2) + lazy.take("a") + lazy.scale(1)
    y = functools.reduce(lambda a, b: a * 0.5 + b, [x, y, x], x)
    return y, vars(lazy).keys()


def caches(x):
    y = x * cached_scale(3)
    note(1)
    return y + cached_scale(3) + cached_scale(4)


def total_order(x):
    @functools.total_ordering
    class Version:
        def __init__(self, n):
            self.n = n

        def __eq__(self, other):
            return self.n == other.n

        def __lt__(self, other):
            note(self.n, other.n)
            return self.n < other.n

    a, b = Version(1), Version(2)
    return x * (a <= b) + (a > b) + max(a, b).n


# ---------------------------------------------------------------------------- classes
Pair = namedtuple("Pair", "a b")


class Triple(typing.NamedTuple):
    a: torch.Tensor
    b: int = 2

    def total(self):
        return self.a + self.b


@dataclasses.dataclass(frozen=True, order=True)
class Frozen:
    n: int
    rows: tuple = dataclasses.field(default_factory=tuple, compare=False)


@dataclasses.dataclass(slots=True, kw_only=True)
class Slotted:
    x: typing.Any
    n: int = 3


def records(x):
    pair = Pair(x, 2)._replace(b=3)
    triple = Triple(x * 2)
    note(pair.b, triple.b)
    point = Point2(1.0)
    frozen = dataclasses.replace(Frozen(1), n=2)
    note(point.total, frozen > Frozen(1))
    slotted = Slotted(x=x)
    slotted.n += 1
    a, b = pair
    return (a * b + triple.total() + point.total * frozen.n * slotted.n, pair, triple, point, frozen,
            slotted.n, dataclasses.asdict(point), triple._asdict())


def enums(x):
    color = Color.named("blue")
    note(color.name, color.half)
    mode = Mode.A | Mode.B
    table = {Color.RED: x, Color.BLUE: x * 2}
    return table[color] * color.value, [c.name for c in Color], mode & Mode.A, Color(1) is Color.RED


class Unit:
    """A data descriptor."""

    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, instance, owner=None):
        if instance is None:
            return self
        return getattr(instance, self.name, 1) * 2

    def __set__(self, instance, value):
        LOG.append(value)
        setattr(instance, self.name, value)


class Meta(type):
    def __new__(meta, name, bases, space, tag="none"):
        space["tag"] = tag
        return super().__new__(meta, name, bases, space)

    def __init__(cls, name, bases, space, tag="none"):
        super().__init__(name, bases, space)

    def __call__(cls, *args, **kwargs):
        made = super().__call__(*args, **kwargs)
        made.is_made = True
        return made

    def __len__(cls):
        return 7

    @property
    def shout(cls):
        return cls.__name__.upper()


class Base(metaclass=Meta, tag="base"):
    unit = Unit()
    registry: dict = {}

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        Base.registry[cls.__name__] = len(cls.__name__)

    def __init__(self, x):
        self._x = x

    @property
    def value(self):
        return self._x * self.unit

    @value.setter
    def value(self, new):
        note("set")
        self._x = new

    @value.deleter
    def value(self):
        self._x = self._x * 0

    @staticmethod
    def double(y):
        return y * 2

    @classmethod
    def make(cls, x):
        return cls(x)

    def step(self, y):
        return y + 1


class Left(Base, tag="left"):
    def step(self, y):
        note("left")
        return super().step(y) * 2


class Right(Base):
    def step(self, y):
        return super().step(y) + self.value


class Both(Left, Right, tag="both"):
    def __getattr__(self, name):
        if name.startswith("magic_"):
            note(name)
            return lambda y: y * len(name)
        raise AttributeError(name)

    def step(self, y):
        return super().step(y)


def classes(x):
    both = Both.make(x)
    both.unit = 3
    y = both.step(x) + both.value
    both.value = y
    note(Both.shout, len(Both), Both.tag, both.is_made)
    y = y + both.magic_one(x) + Both.double(both.value)
    del both.value
    return y, both.value, hasattr(both, "other"), getattr(both, "none", 5), Both.registry


def classes_made_inside(x):
    class Inner(Base):
        scale = note("body") + 1

        def step(self, y):
            return super().step(y) * self.scale * x

    inner = Inner(x)
    note("between")
    return inner.step(x), isinstance(inner, Base), Inner.__mro__[1].__name__


class Dunder:
    def __init__(self, y):
        self.y = y

    def __add__(self, other):
        note("add")
        return Dunder(self.y + getattr(other, "y", other))

    __radd__ = __add__

    def __getitem__(self, key):
        return self.y[key]

    def __len__(self):
        return len(self.y)

    def __bool__(self):
        return bool(self.y.sum() > 0)

    def __call__(self, z):
        return self.y * z

    def __contains__(self, n):
        return n < len(self)

    def __iter__(self):
        for i in range(3):
            yield self.y * i

    def __eq__(self, other):
        note("eq")
        return len(self) == len(other)

    def __hash__(self):
        note("hash")
        return 7

    def __lt__(self, other):
        note("lt")
        return bool(self.y.sum() < other.y.sum())

    def __matmul__(self, other):
        return self.y @ other.y

    def __enter__(self):
        note("enter")
        return self.y

    def __exit__(self, *args):
        note("exit", args[0])
        return args[0] is KeyError

    def __format__(self, spec):
        return f"<{spec}{len(self)}>"

    def __index__(self):
        return 2

    def __delitem__(self, key):
        LOG.append(("del", key))

    def __setitem__(self, key, value):
        LOG.append(("set", key))
        self.y = self.y * value


def dunders(x):
    d = Dunder(x)
    e = 1 + (d + 2) + d
    result = e(x) if e else e(-x)
    d[1] = 2
    del d[0]
    return (result, 3 in d, list(d), d[1], d @ e, f"{d:a}", [1, 2, 3][d], list(range(d)))


# ---------------------------------------------------------------------------- escapes through C
def sorts(x):
    items = [Dunder(x * i) for i in (3, 1, 2)]
    items.sort()
    more = sorted([(2, x), (1, x * 2)], key=lambda row: note("key") and row[0])
    return [item.y for item in items], more


def hashes(x):
    table = {Dunder(x): 1}
    table[Dunder(x * 2)] = 2
    return len(table), table[Dunder(x)], len({Dunder(x), Dunder(x)}), Dunder(x) in [Dunder(x)], x * 2


def reductions(x):
    best = max([x, -x, x * 2], key=lambda y: note("max") and y.sum().item())
    least = min([3, 1, 2], key=lambda n: -n)
    total = functools.reduce(lambda a, b: (note("reduce"), a + b)[1], [x, x * 2, x * 3])
    mapped = list(map(lambda a, b: a * b + note("map"), [x, x], [1, 2]))
    kept = list(filter(lambda n: note("filter") and n > 1, [1, 2, 3]))
    return best, least, total, mapped, kept, any(note(i) > 5 for i in range(3)), sum(
        (y for y in mapped), start=x)


def substitutions(x):
    found = []

    def replace(match):
        found.append(match.group())
        note(match.group())
        return str(len(found))

    return re.sub(r"\d", replace, "a1b2"), found, x * len(found)


def default_dicts(x):
    made = []

    def factory():
        made.append(len(made))
        note("factory")
        return x * len(made)

    table = defaultdict(factory)
    y = table["a"] + table["b"] + table["a"]
    table["c"] += 1

    class Missing(dict):
        def __missing__(self, key):
            note("missing", key)
            return x * len(key)

    return y, dict(table), Missing(a=1)["bcd"], Counter("aab"), made


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, n):
        note("forward", n)
        ctx.save_for_backward(x)
        return x * n

    @staticmethod
    def backward(ctx, grad):
        return grad * 2, None


def autograd_functions(x):
    return Double.apply(x, 3) + Double.apply(x, 2)


def raw_attributes(x):
    base = Left(x)
    first = object.__getattribute__(base, "value")
    object.__setattr__(base, "extra", 3)
    note("raw")
    return first * object.__getattribute__(base, "extra"), type(base).value.fget(base), vars(base)


# ---------------------------------------------------------------------------- contexts
@contextlib.contextmanager
def scope(name, log=LOG):
    note("in", name)
    log.append(("in", name))
    try:
        yield len(name)
    finally:
        log.append(("out", name))
        note("out", name)


def contexts(x):
    with scope("a") as n, Dunder(x) as y, contextlib.suppress(ValueError):
        x = x * n + y
        note("inside")
        if x.sum() > 0:
            fail(ValueError, "gone")
        x = x + 1
    with contextlib.ExitStack() as stack:
        for name in "bc":
            stack.enter_context(scope(name))
        stack.callback(note, "callback")
        x = x * 2
    return x


PROGRAMS = [
    closures, closures_returned, arguments, bad_arguments, recursive, recursive_on_values,
    comprehensions, walrus_and_star, generator_whole, generator_sent, generator_closed,
    generator_in_the_middle, functools_all, caches, records, enums, classes, dunders, substitutions,
    raw_attributes,
]
# the host call is where no later call could go on from: inside a callback of C, a class body
PLAIN = [
    decorated, generator_thrown, total_order, classes_made_inside, sorts, hashes, reductions,
    default_dicts, autograd_functions, contexts,
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_compiled(program):
    check(program)


@pytest.mark.parametrize("program", PLAIN)
def test_right_in_any_case(program):
    check(program, why=None)


# ---------------------------------------------------------------------------- async
def test_coroutines_run_eager():
    """Awaited natively; the compiled function inside is compiled."""
    inner = preheat.compile(lambda x: torch.relu(x) * 2, options={"cache": False})

    async def rows(x):
        for i in range(3):
            await asyncio.sleep(0)
            yield inner(x) * i

    @contextlib.asynccontextmanager
    async def opened():
        LOG.append("open")
        yield 2
        LOG.append("closed")

    async def program(x):
        async with opened() as n:
            results = [row * n async for row in rows(x)]
        return await asyncio.gather(*[one(row) for row in results])

    async def one(x):
        await asyncio.sleep(0)
        return inner(x)

    LOG.clear()
    compiled = preheat.compile(program, options={"cache": False})
    with torch.no_grad():
        for _ in range(3):
            found = asyncio.run(compiled(X))
            for i, row in enumerate(found):
                torch.testing.assert_close(row, torch.relu(torch.relu(X) * 2 * i * 2) * 2)
    assert LOG == ["open", "closed"] * 3


# ---------------------------------------------------------------------------- threads, re-entry
def mixed(x, state):
    state["calls"] = state.get("calls", 0) + 1
    y = torch.tanh(x) * 2
    note_quietly(y)
    if y.sum() > 0:
        y = y + y.max().item()
    return y - 1, state["calls"]


note_quietly = preheat.disable(lambda y: time.sleep(0.001))


def test_threads_call_one_function_at_once():
    compiled = preheat.compile(mixed, options={"cache": False})
    inputs = [X * scale for scale in (1, -1, 3, -2)] + [X.double(), torch.ones(3, 4)]
    failures, barrier = [], threading.Barrier(6)

    def work(number):
        x, state = inputs[number], {}
        try:
            barrier.wait()
            with torch.no_grad():
                for call in range(12):
                    found, expected = compiled(x, state), mixed(x, {"calls": call})
                    torch.testing.assert_close(found, expected)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def test_re_entry_from_a_host_call_a_key_and_a_property():
    depth = []

    def program(x, n):
        y = x * 2 + n
        if n:
            y = y + call(x, n - 1)
            y = y + sorted([2, 1], key=lambda i: depth.append(n) or i)[0]
        note_quietly(y)
        return y + y.sum().item()

    compiled = preheat.compile(program, options={"cache": False})
    call = preheat.disable(lambda x, n: (compiled if is_compiled else program)(x, n))
    with torch.no_grad():
        for scale in (1.0, 2.0, -1.0, 1.0):
            is_compiled = False
            expected, seen = program(X * scale, 3), depth[:]
            depth.clear()
            is_compiled = True
            torch.testing.assert_close(compiled(X * scale, 3), expected)
            assert depth == seen
            depth.clear()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_goes_on_captures_and_resumes():
    compiled = preheat.compile(mixed, options={"cache": False})
    with torch.no_grad():
        compiled(X, {}), compiled(X, {})
        child = os.fork()
        if child == 0:
            try:
                for x in (X, -X, X.double(), X):  # replays, resumes, captures
                    torch.testing.assert_close(compiled(x, {}), mixed(x, {}))
                os._exit(0)
            except BaseException:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        torch.testing.assert_close(compiled(-X, {}), mixed(-X, {}))


# ---------------------------------------------------------------------------- tracers
@pytest.mark.parametrize("kind", ["settrace", "setprofile"])
@pytest.mark.parametrize("calls_before", [0, 1, 3])
def test_tracers_see_the_frames_of_plain_python(kind, calls_before):
    def inner(y):
        return y + 1

    def program(x):
        y = inner(x * 2)
        note_quietly(y)
        return inner(y)

    def traced(call):
        names = []

        def tracer(frame, event, arg):
            if frame.f_code.co_filename == __file__ and event in ("call", "return"):
                names.append((event, frame.f_code.co_name))
            return tracer

        getattr(sys, kind)(tracer)
        try:
            call(X)
        finally:
            getattr(sys, kind)(None)
        return [row for row in names if row[1] != "traced"]

    compiled = preheat.compile(program, options={"cache": False})
    with torch.no_grad():
        for _ in range(calls_before):
            compiled(X)
        assert traced(compiled) == traced(program)
        before = preheat.counters()["interpreted"]
        torch.testing.assert_close(compiled(X), program(X))
        assert preheat.counters()["interpreted"] == before
