"""Guards under fire: random functions over a world of objects, random mutations between calls.

A program is source text made of `READS`, each a statement that reads the world in one way that
guards must cover; between calls one or two of `MUTATIONS` change the world. Eager and compiled each
have a world of their own, built and changed alike, and must agree after every call. The source and
the mutations stand in the failure. Seeds are fixed: a failure repeats.
"""

import linecache
import random
import types

import pytest
import torch
from torch import nn

from same import Program, same_program

WORLD = """
import _abc
import abc
import collections.abc
import types
import enum
import functools
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

GAIN = 1.5
LIMITS = [2, 3]
NAMES = {"mode": "fast"}


class Mode(enum.Enum):
    ADD = 1
    MUL = 2


class Pair(NamedTuple):
    left: float
    right: object


@dataclass
class Config:
    width: int = 4
    rate: float = 0.5
    name: str = "base"
    nested: object = None


class Thing:
    factor = 2.0

    def __init__(self):
        self.bias = 1.0

    def apply(self, y):
        return y * self.factor + self.bias

    @property
    def double(self):
        return self.bias * 2

    @staticmethod
    def fixed(y):
        return y - 1

    def __len__(self):
        return 3


class Plain:
    def twice(self, y):
        return y * 2


class Marked:
    def twice(self, y):
        return y + 22


class Other(Thing, Plain):
    factor = -1.0

    def apply(self, y):
        return y + self.factor


class Child(nn.Module):
    offset = 0.25

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.arange(16.0).reshape(4, 4) / 16)
        self.register_buffer("mean", torch.ones(4))
        self.rate = 0.5

    def forward(self, y):
        return y @ self.weight + self.mean * self.rate + self.offset


class World(nn.Module):
    def __init__(self):
        super().__init__()
        self.child, self.other = Child(), Child()
        self.blocks = nn.ModuleList([Child(), nn.Identity()])
        self.scale, self.count, self.on, self.name = 2.0, 3, True, "world"
        self.items, self.tensors = [1.0, 2.0, 3.0], [torch.ones(4), torch.zeros(4)]
        self.mask = torch.ones(3, dtype=torch.int64)
        self.table = {"a": 1.0, "b": 2.0}
        self.kinds, self.pair = {"x", "y"}, Pair(1.0, 2.0)
        self.config, self.thing, self.mode = Config(nested=Config(rate=0.1)), Thing(), Mode.ADD
        self.space = types.SimpleNamespace(level=1, inner=types.SimpleNamespace(level=2))
        self.activation, self.partial = torch.relu, functools.partial(torch.clamp, min=-1.0)
        self.dtype, self.size = torch.float32, (2, 4)
        self.none, self.heir = None, Other()
        self.slots = Slots()


class Slots:
    __slots__ = ("level", "other")


class Named(abc.ABC):
    pass


def helper(y, by=3.0, *, shift=0.0):
    return y * by + shift


def make_closure():
    inside = [0.5]
    def closed(y):
        return y + inside[0] * len(inside)
    return closed, inside


closed, inside = make_closure()
"""

# Statements over y (a tensor [2, 4]), w (the world) and the module's globals.
READS = (
    "y = y * w.scale",
    "y = y + w.count",
    "y = y * GAIN",
    "y = y + LIMITS[0] - len(LIMITS)",
    "y = y if w.on else -y",
    "y = y + (1 if w.name == 'world' else 2)",
    "y = w.child(y)",
    "y = w.other(y) - w.child(y)",
    "for block in w.blocks: y = block(y)",
    "y = y + sum(w.items)",
    "for item in w.items: y = y + item",
    "y = y + max(w.items) - min(w.items)",
    "for t in w.tensors: y = y + t",
    "y = y + w.tensors[0] * 2",
    "y = y + w.table['a']",
    "y = y * w.table.get('c', 0.5)",
    "for k, v in w.table.items(): y = y + v * len(k)",
    "y = y + len(w.table)",
    "y = y + (3 if 'b' in w.table else 4)",
    "y = y - (1 if 'x' in w.kinds else 2)",
    "y = y * len(w.kinds)",
    "y = y + w.pair.left",
    "left, right = w.pair; y = y + right",
    "y = y * w.config.rate + w.config.nested.rate",
    "y = y + w.config.width",
    "y = w.thing.apply(y)",
    "y = y + w.thing.double",
    "y = w.thing.fixed(y)",
    "y = y + len(w.thing)",
    "y = y * (2 if w.mode is Mode.ADD else 3)",
    "y = y + w.mode.value",
    "y = y + w.space.inner.level",
    "y = w.activation(y)",
    "y = w.partial(y)",
    "y = y.to(w.dtype).to(torch.float32)",
    "y = y.reshape(w.size)",
    "y = y + (5 if w.none is None else 6)",
    "y = helper(y)",
    "y = helper(y, shift=1.0)",
    "y = closed(y)",
    "y = y + getattr(w, 'maybe', 0.5)",
    "y = y + 1 if hasattr(w, 'maybe') else y - 1",
    "y = y + (2 if isinstance(w.thing, Other) else 1)",
    "y = y * (2 if w.child is w.other else 1)",
    "y = y + (1 if w.training else 0)",
    "y = torch.dropout(y, 0.5, w.training)",
    "y = y + w.child.weight.sum() * w.child.rate",
    "y = y + len(list(w.parameters()))",
    "y = y + type(w.thing).factor",
    "y = y + w.child.mean",
    "y = y + {True: 1, False: 2}[w.on]",
    "y = y + (1 if NAMES['mode'] == 'fast' else 2)",
    "y = y + [i * 2 for i in w.items][-1]",
    "a, *b = w.items; y = y + a * len(b)",
    "y = y + sorted(w.table)[0].count('a')",
    "y = y + (1 if w.child.weight.dtype is torch.float32 else 2)",
    "y = y * w.child.weight.shape[0]",
    "y = y + (1 if w.child.weight.requires_grad else 2)",
    "y = y + dict(w.table)['b']",
    "y = y + next(iter(w.items))",
    "y = y + any(i > 2 for i in w.items)",
    "y = y + len(f'{w.name}{w.count}')",
    "y = y + (w.scale if w.count > 2 and w.on else w.items[0])",
    "y = y + x.shape[0] * w.count // 2",
    "y = y + sum(p.numel() for p in w.child.parameters())",
    "match w.mode:\n        case Mode.ADD: y = y + 7\n        case _: y = y - 7",
    "try: y = y + w.table['zz']\n    except KeyError: y = y - 1",
    "with torch.no_grad(): y = y + w.scale",
    "y = y + sum(len(k) for k in w.kinds)",
    "y = y + ('y' in set(w.kinds)) * 3",
    "y = y + (1 if w.tensors[0] is w.tensors[1] else 2)",
    "y = y + (1 if w.thing is not w.heir else 2)",
    "y = y + len({id(w.thing), id(w.heir), id(w.config)})",
    "y = y + len({w.thing, w.heir})",
    "y = y + len({w.tensors[0]: 1, w.tensors[1]: 2})",
    "y = y + (1 if isinstance(w.thing, collections.abc.Sized) else 2)",
    "y = y + (1 if isinstance(w.heir, Named) else 2)",
    "y = y + (1 if issubclass(type(w.heir), Named) else 2)",
    "y = y + (1 if Named.__instancecheck__(w.heir) else 2)",
    "y = y + (1 if _abc._abc_instancecheck(Named, w.heir) else 2)",
    "y = y + (1 if isinstance(w.heir, Plain) else 2)",
    "y = w.heir.twice(y)",
    "y = y + (1 if hasattr(w.slots, 'level') else 2)",
    "y = y + getattr(w.slots, 'other', 0.5)",
    "y = y + torch.ones(2, 4)",
    "y = y + torch.tensor(0.5).dtype.itemsize",
    "y = y + (1 if (w.tensors[0] > 0).all() else 2)",
    "y = y + (1 if w.mask.all() else 2)",
    "y = y + (1 if torch.equal(w.tensors[0], torch.ones(4)) else 2)",
    "y = y + (1 if torch.is_grad_enabled() else 2)",
    "y = y + (1 if torch.are_deterministic_algorithms_enabled() else 2)",
    "for k in NAMES: y = y + len(k)",
    "y = y + (1 if list(w.table) == ['a', 'b'] else 2)",
    "w.tensors[0].add_(1); y = y + w.tensors[1]",
    "y = y + len([*w.items, *w.items])",
)
MUTATIONS = (
    "w.scale = 3.5",
    "w.scale = 3",
    "w.count += 1",
    "w.count = True",
    "w.on = not w.on",
    "w.name = 'other'",
    "g['GAIN'] = -0.5",
    "g['LIMITS'][0] = 9",
    "g['LIMITS'].append(4)",
    "g['LIMITS'] = [7]",
    "w.child = g['Child']()",
    "w.other = w.child",
    "w.child.rate = 4.0",
    "w.child.mean = torch.zeros(4)",
    "w.child.mean.add_(1)",
    "w.child.weight = nn.Parameter(torch.eye(4))",
    "w.child.weight.data.mul_(2)",
    "w.child.weight.data = torch.ones(4, 4).t()[:, [1, 0, 2, 3]]",
    "w.child.requires_grad_(False)",
    "w.child.weight.requires_grad_(not w.child.weight.requires_grad)",
    "w.blocks.append(nn.ReLU())",
    "w.blocks[0] = nn.Tanh()",
    "del w.blocks[-1]",
    "w.items.append(5.0)",
    "w.items.pop()",
    "w.items[0] = -1.0",
    "w.items = [4.0]",
    "w.items.reverse()",
    "w.items[0] = 1",
    "w.tensors.append(torch.full((4,), 2.0))",
    "w.tensors[0] = torch.full((1,), 3.0)",
    "w.tensors[0].add_(1)",
    "w.tensors[1] = w.tensors[0]",
    "w.table['a'] = 7.0",
    "w.table['c'] = 9.0",
    "w.table.pop('b', None)",
    "w.table['a'] = w.table.pop('a')",
    "w.table = {'a': 0.0, 'b': 1.0}",
    "w.kinds.add('z')",
    "w.kinds.discard('x')",
    "w.pair = g['Pair'](5.0, 6.0)",
    "w.pair = w.pair._replace(right=torch.ones(4))",
    "w.config.rate = 0.75",
    "w.config.nested.rate = 0.9",
    "w.config.width = 8",
    "w.config.nested = w.config",
    "w.thing = g['Other']()",
    "w.thing.bias = 4.0",
    "w.thing.factor = 10.0",
    "g['Thing'].factor = 3.0",
    "g['Thing'].__len__ = lambda self: 9",
    "w.thing.__class__ = g['Other']",
    "w.thing.apply = lambda y: y + 100",
    "g['Thing'].apply = lambda self, y: y - 100",
    "g['Thing'].double = 12.0",
    "g['Thing'].fixed = staticmethod(lambda y: y + 1)",
    "w.mode = g['Mode'].MUL",
    "w.space.inner.level = 5",
    "w.space.inner = w.space",
    "w.activation = torch.tanh",
    "w.partial = g['functools'].partial(torch.clamp, max=0.5)",
    "w.dtype = torch.bfloat16",
    "w.dtype = torch.float64",
    "w.size = (4, 2)[::-1]",
    "w.size = (2, 2, 2)[:1] + (4,)",
    "w.none = 0",
    "g['helper'].__defaults__ = (4.0,)",
    "g['helper'].__kwdefaults__ = {'shift': 2.0}",
    "g['helper'].__code__ = (lambda y, by=1.0, *, shift=0.0: y - by + shift).__code__",
    "g['helper'] = lambda y, shift=0.0: y * 0.5 + shift",
    "g['inside'].append(1.0)",
    "g['inside'][0] = 2.0",
    "w.maybe = 8.0",
    "w.maybe = None or 1.0",
    "w.__dict__.pop('maybe', None)",
    "w.train()",
    "w.eval()",
    "w.child.train(not w.child.training)",
    "g['Child'].offset = 2.0",
    "w.child.offset = 5.0",
    "w.child.register_forward_hook(lambda m, a, out: out + 1)",
    "w.register_buffer('extra', torch.ones(2))",
    "w.child.forward = lambda y: y * 3",
    "g['Child'].forward = lambda self, y: y + self.rate",
    "g['NAMES']['mode'] = 'slow'",
    "g['Mode'].ADD._value_ = 11",
    "w.child.double(), w.child.float()",
    "w.kinds.add('long'), w.kinds.discard('y')",
    "w.kinds = {'y', 'x', 'w'}",
    "w.heir = w.thing",
    "w.thing = w.heir",
    "w.thing, w.heir = w.heir, w.thing",
    "w.tensors[0] = w.tensors[1]",
    "w.tensors[0] = w.tensors[1].view(4)",
    "g['Other'].__bases__ = (g['Thing'], g['Marked'])",
    "g['Other'].__bases__ = (g['Marked'], g['Thing'])",
    "g['Named'].register(g['Other'])",
    "g['Named'].register(g['Thing'])",
    "w.slots.level = 3.0",
    "w.slots.other = 9.0",
    "del w.slots.level",
    "torch.set_default_dtype(torch.float64)",
    "torch.use_deterministic_algorithms(True)",
    "w.tensors[0].sub_(3)",
    "w.mask.fill_(0)",
    "w.mask[1] = 1",
    "w.mask = torch.ones(3, dtype=torch.int64)",
    "w.tensors[0].copy_(torch.ones(4))",
    "g['NAMES'].update(longer='x')",
    "g['NAMES'].pop('longer', None)",
    "w.table.update(dd=1.0)",
)


def program(seed, reads=READS, changes=MUTATIONS):
    """(source of fn, the mutations before each call)."""
    chance = random.Random(seed)
    body = "\n    ".join(chance.sample(reads, min(chance.randint(3, 9), len(reads))))
    source = f"def fn(x, w):\n    y = x\n    {body}\n    return y, x\n"
    mutations = [chance.sample(changes, chance.randint(1, 2)) for _ in range(5)]
    return source, mutations


def check(seed, backend="preheat", reads=READS, changes=MUTATIONS):
    source, mutations = program(seed, reads, changes)

    before = torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled()

    def make():
        _set_ambient(*before)
        namespace = _module(f"fuzz_world_{seed}", WORLD + "\n\n" + source)
        world = namespace["World"]().eval()

        def change(statements):
            def changed(_):
                for statement in statements:
                    _apply(statement, world, namespace)

            return changed

        x = torch.arange(8.0).reshape(2, 4) / 8
        between = {number: change(row) for number, row in enumerate(mutations, start=2)}
        return Program(namespace["fn"], (x, world), between=between)

    try:
        settings = {"backend": backend, "options": {"recompile_limit": 16}}
        same_program(make, calls=len(mutations) + 2, settings=settings)
    except AssertionError as error:
        raise AssertionError(
            f"seed {seed}\n{source}\nmutations {mutations}\n{error}\n{error.__cause__!r}"
        ) from error
    finally:
        _set_ambient(*before)


def _set_ambient(dtype, is_deterministic):
    torch.set_default_dtype(dtype)
    torch.use_deterministic_algorithms(is_deterministic)


def _apply(statement, world, namespace):
    """Does one mutation; one that earlier ones made impossible does nothing, on both sides."""
    try:
        exec(statement, {"w": world, "g": namespace, "torch": torch, "nn": nn})
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        pass


def _module(name, text):
    """The namespace of a module with `text`, whose lines tracebacks and reports can show."""
    module = types.ModuleType(name)
    file = f"<{name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), module.__dict__)
    return module.__dict__


@pytest.mark.parametrize("seed", range(40))
def test_guards_hold(seed):
    check(seed)


@pytest.mark.fuzz
@pytest.mark.parametrize("start", range(1000, 3000, 20))
def test_guards_hold_in_numbers(start):
    for seed in range(start, start + 20):
        check(seed)
