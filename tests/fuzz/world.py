"""The module that random programs live in: globals, classes, a world of objects to read and write.

`TEXT` is source: each side of a comparison executes its own copy, so that nothing is shared. Every
number in it is small and whole, and the programs keep it so: sums and products of such floats are
exact in any order, and a branch or a printed line cannot differ by rounding.
"""

TEXT = '''
import collections
import contextlib
import dataclasses
import enum
import functools
import itertools
import math
import operator
import random
from typing import NamedTuple

import numpy
import torch
from torch import nn
from torch.nn import functional as F

import preheat

CALLS = 0
TABLE = {"a": 1, "b": 2}
LOG = []
LIMITS = [2, 3]


class Mode(enum.Enum):
    ADD = 1
    MUL = 2


class Pair(NamedTuple):
    first: object
    second: object


@dataclasses.dataclass
class Config:
    width: int = 3
    label: str = "base"
    extra: object = None

    def widened(self, by):
        return dataclasses.replace(self, width=self.width + by)


class Failure(Exception):
    def __init__(self, text, code=0):
        super().__init__(text)
        self.code = code


class Thing:
    level = 2
    made = []

    def __init__(self, start=0):
        self.count = start
        self.notes = []

    def step(self, t):
        self.count += 1
        return t + self.count

    def note(self, text):
        self.notes.append(text)
        return len(self.notes)

    @property
    def total(self):
        return self.count * 2 + self.level

    @total.setter
    def total(self, value):
        self.count = value // 2

    @classmethod
    def make(cls, start):
        cls.made.append(start)
        return cls(start)

    @staticmethod
    def halved(t):
        return (t / 2).floor()

    def __call__(self, t, *more, by=1, **named):
        return t * by + len(more) + len(named)

    def __len__(self):
        return 3

    def __getitem__(self, key):
        self.notes.append(key)
        return key + 1

    def __iter__(self):
        yield self.count
        yield self.level

    def __eq__(self, other):
        return isinstance(other, Thing) and self.count == other.count

    def __hash__(self):
        return 7

    def __lt__(self, other):
        return self.count < other.count

    def __getattr__(self, name):
        if name.startswith("late"):
            return len(name)
        raise AttributeError(name)


class Louder(Thing):
    level = 3

    def step(self, t):
        return super().step(t) * 2


class Noted:
    """A context manager that writes down how it was left."""

    def __init__(self, notes, swallows=False):
        self.notes, self.swallows = notes, swallows

    def __enter__(self):
        self.notes.append("enter")
        return self

    def __exit__(self, kind, error, traceback):
        self.notes.append("leave" if kind is None else kind.__name__)
        return self.swallows


@contextlib.contextmanager
def scoped(notes, name):
    notes.append(f"open {name}")
    try:
        yield len(notes)
    finally:
        notes.append(f"shut {name}")


def fail(number):
    raise ValueError(f"failed with {number}")


def counted(function):
    @functools.wraps(function)
    def inner(*args, **kwargs):
        global CALLS
        CALLS += 1
        return function(*args, **kwargs)

    return inner


@counted
def decorated(t, by=2):
    return t - by


@preheat.disable
def opaque(t, notes):
    notes.append(int(t.sum()))
    return t.clamp(-3, 3)


def recursive(t, depth):
    return t if depth <= 0 else recursive(t + depth, depth - 1)


def produce(t, count):
    for number in range(count):
        got = yield t + number
        if got:
            t = t * 2
    return count


class Part(nn.Module):
    def __init__(self):
        super().__init__()
        rows = [[1.0, 0, -1, 0], [0, 1, 0, 0], [2, 0, 1, 0], [0, 0, 0, 1]]
        self.weight = nn.Parameter(torch.tensor(rows))
        self.register_buffer("mean", torch.ones(4))
        self.calls = 0

    def forward(self, t):
        self.calls += 1
        return (t @ self.weight + self.mean).clamp(-9, 9)


class World(nn.Module):
    def __init__(self):
        super().__init__()
        self.part, self.other = Part(), Part()
        self.parts = nn.ModuleList([Part(), nn.ReLU()])
        self.register_buffer("memory", torch.zeros(4, 4))
        self.count, self.scale, self.on, self.name = 0, 2, True, "world"
        self.items, self.table = [1, 2, 3], {"a": 1, "b": 2}
        self.tensors = [torch.ones(4), torch.arange(4.0)]
        self.thing, self.config, self.mode = Thing(), Config(), Mode.ADD
        self.seen, self.queue, self.notes = {"x"}, collections.deque([1, 2], maxlen=5), []
        self.tally = collections.defaultdict(int)
        self.last = None
        self.stash = []


WORLD = World()
'''
