"""Random object graphs, random changes: whenever the native rows pass, the Python checker agrees.

Graphs nest instances, slots, dicts, lists, tuples, closures, modules and tensors under the target and
the arguments, with shared objects. Changes pick any mutable object that is reachable and do anything.
"""

import random
from collections import OrderedDict

import pytest
import torch
from consult import Book
from native_rows import native_check

from preheat.ir.rows import ROW, VERDICT
from preheat.run.check import Checker, Failure
from preheat.run.rows import bind_rows


class Graph:
    """A random object graph. `mutable` lists what can be changed."""

    def __init__(self, chance: random.Random):
        self.chance, self.mutable = chance, []
        base = type("Base", (), {"scale": 1})
        self.classes = [
            type("A", (base,), {}),
            type("B", (base,), {"scale": 2}),
            type("S", (), {"__slots__": ("x", "y")}),
        ]
        self.target = self.make(4, root=True)
        self.args = [self.make(2) for _ in range(chance.randint(1, 4))]

    def make(self, depth: int, root: bool = False):
        makers = [
            self.instance,
            self.instance,
            self.dict,
            self.list,
            self.tuple,
            self.closure,
            self.slots,
            self.module,
        ]
        if not root and (depth == 0 or self.chance.random() < 0.3):
            return self.leaf()
        if self.mutable and self.chance.random() < 0.1 and not root:
            return self.chance.choice(self.mutable)
        return self.chance.choice(makers[:4] if root else makers)(depth - 1)

    def leaf(self):
        c = self.chance
        shape = tuple(c.randint(1, 3) for _ in range(c.randint(0, 6)))
        return c.choice((
            lambda: c.randint(-3, 3), lambda: c.randint(1 << 60, 1 << 90), c.random, lambda: c.choice("abc") * 3,
            lambda: None, lambda: c.random() < 0.5, lambda: torch.zeros(shape), lambda: torch.ones(2, 3, dtype=torch.int32),
            lambda: c.choice(self.classes), lambda: len,
        ))()

    def keep(self, value):
        self.mutable.append(value)
        return value

    def instance(self, depth):
        value = self.keep(self.chance.choice(self.classes[:2])())
        for name in self.chance.sample("abcdef", 3):
            setattr(value, name, self.make(depth))
        return value

    def slots(self, depth):
        value = self.keep(self.classes[2]())
        value.x = self.make(depth)
        return value

    def dict(self, depth):
        value = self.keep(self.chance.choice((dict, OrderedDict))())
        value.update({name: self.make(depth) for name in self.chance.sample("abcdef", 3)})
        return value

    def list(self, depth):
        return self.keep([self.make(depth) for _ in range(self.chance.randint(0, 4))])

    def tuple(self, depth):
        return tuple(self.make(depth) for _ in range(3))

    def closure(self, depth):
        inside = self.make(depth)

        def function(x, default=self.make(depth)):
            return inside, default, x

        return self.keep(function)

    def module(self, depth):
        value = self.keep(torch.nn.Linear(2, 2, bias=self.chance.random() < 0.5))
        value.__dict__["extra"] = self.make(depth)
        return value

    # ------------------------------------------------------------------ changes
    def change(self) -> None:
        where = self.chance.choice([*self.mutable, self.args, *self.classes])
        names = self.chance.choice("abcdefxy")
        if where is self.args:
            index = self.chance.randrange(len(where))
            where[index] = self.chance.choice((lambda: self.make(1), lambda: where[index]))()
        elif isinstance(where, list):
            self.change_list(where)
        elif isinstance(where, dict):
            self.chance.choice((
                lambda: where.__setitem__(names, self.make(1)), lambda: where.pop(names, None),
                lambda: where.update(dict(where)), lambda: where.setdefault("z", 1),
                lambda: where.__setitem__(*self.chance.choice([*where.items(), ("q", 1)])),
            ))()
        elif isinstance(where, type):
            where.scale = self.chance.randint(1, 3)
        elif isinstance(where, torch.nn.Module):
            self.change_module(where)
        elif hasattr(where, "__code__"):
            where.__defaults__ = self.chance.choice((where.__defaults__, (self.make(1),)))
            where.__closure__[0].cell_contents = self.chance.choice(
                (where.__closure__[0].cell_contents, self.make(1))
            )
        elif type(where) is self.classes[2]:
            setattr(where, self.chance.choice("xy"), self.make(1))
        else:
            self.chance.choice((
                lambda: setattr(where, names, self.make(1)), lambda: where.__dict__.pop(names, None),
                lambda: setattr(where, "__dict__", dict(where.__dict__)),
                lambda: setattr(where, "__class__", self.chance.choice(self.classes[:2])),
                lambda: setattr(where, names, getattr(where, names, 0)),
            ))()

    def change_list(self, where: list) -> None:
        self.chance.choice((
            lambda: where.append(self.make(1)), lambda: where and where.pop(), lambda: where.reverse(),
            lambda: where and where.__setitem__(0, self.make(1)), lambda: where.extend(()),
            lambda: (where.extend([None] * 50), where.__delitem__(slice(-50, None))),
        ))()

    def change_module(self, module: torch.nn.Module) -> None:
        weight = module.weight
        self.chance.choice((
            lambda: weight.requires_grad_(self.chance.random() < 0.5), lambda: module.train(self.chance.random() < 0.5),
            lambda: setattr(weight, "data", torch.zeros(2, self.chance.randint(1, 3))),
            lambda: setattr(module, "weight", torch.nn.Parameter(torch.zeros(2, 2))), module.double,
            lambda: setattr(weight, "data", weight.data.t()), lambda: module.__dict__.update(extra=self.make(1)),
        ))()


def consulted(graph: Graph) -> Checker:
    """A checker with guards on everything that `graph` reaches now."""
    book = Book()
    book.consult_call(graph.target, graph.args)
    return Checker(book.trace(), graph.target, book.objects)


@pytest.mark.parametrize("seed", range(40))
def test_random_graphs(seed):
    chance = random.Random(seed)
    graph, rows = Graph(chance), None
    for _ in range(25):
        if rows is None:
            checker = consulted(graph)
            found = checker.resolve(graph.args, {})
            rows = bind_rows(checker, found, graph.args)
            assert native_check(rows, graph.args) == (rows.count - 1 if rows.in_python else -1)
            if chance.random() < 0.7:
                rows = followed(rows, found, graph)
        graph.change()
        is_refused = decides(rows, native_check(rows, graph.args))
        passes = accepts(rows, graph.args, repairs=chance.choice((0, 30)))
        found = checker.resolve(graph.args, {})
        if isinstance(found, Failure):
            assert not passes, str(found)
            rows = None
        elif not passes:
            assert not is_refused, "a row decided against a guard that holds"
            fleeting = frozenset(n for n in rows.loose if chance.random() < 0.5)
            rows = bind_rows(checker, found, graph.args, fleeting=fleeting, changing=spaces(rows))
            assert not fleeting & rows.loose
            assert accepts(rows, graph.args, 0)


def spaces(rows):
    return [*rows.versions.values(), *rows.items.values()]


def followed(rows, found, graph):
    """Rows that compare the items of dicts when these change."""
    rows = bind_rows(rows.checker, found, graph.args, changing=spaces(rows))
    assert native_check(rows, graph.args) == (rows.count - 1 if rows.in_python else -1)
    return rows


def decides(rows, row):
    """Whether `row`, which differs, says that a guard does not hold."""
    kind = ROW.unpack_from(rows.buffer, max(row, 0) * ROW.size)[3]
    return row >= 0 and bool(kind & VERDICT)


def accepts(rows, args, repairs: int) -> bool:
    """Whether the native rows, after some repairs, and the guards without rows accept the call."""
    row = native_check(rows, args)
    for _ in range(repairs):
        if row == -1 or not rows.repair(row):
            break
        row = native_check(rows, args)
    return row == -1 or rows.is_python(row) and rows.check_python(args, {}) is None
