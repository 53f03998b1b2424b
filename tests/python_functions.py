"""Programs for test_python.py: functions, generators, patterns and functools around host steps."""

import dataclasses
import enum
import functools

import preheat

LOG: list = []


@preheat.disable
def note(*what):
    """A host step that shows in what is printed."""
    print(*what)
    return len(what)


@preheat.disable
def fail(kind, *args):
    raise kind(*args)


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
