"""Programs for test_python.py: classes, what C calls back, and contexts around host steps."""

import contextlib
import dataclasses
import functools
import re
import typing
from collections import Counter, defaultdict, namedtuple

import torch

from python_functions import LOG, Color, Mode, Point2, fail, note


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
