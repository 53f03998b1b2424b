"""Cases from public bug reports that concern effects, with what makes a call a chain in between:
prints, branches on values, numbers out of tensors. Each kind through `same_program`, several calls.

Every row of `CASES` makes a program: a function with fresh state around it. The numbers are those of
the cases in `test_cases.py`.
"""

import collections
import random

import pytest
import torch
from torch import nn

from same import Program, same_program


def case(*args, watch=None, between=None, calls=4):
    """Makes a case of a function that makes (fn, what to watch)."""

    def mark(make):
        def program():
            fn, seen = make()
            given = args() if callable(args) else tuple(a() if callable(a) else a for a in args)
            return Program(fn, given, watch=seen, between=between or {})

        CASES[make.__name__] = program, calls
        return make

    return mark


CASES = {}


def ones(*sizes):
    return lambda: torch.ones(*sizes)


def overlapping():
    line = torch.arange(12.0).reshape(4, 3)
    return line, line[1:]


# ---------------------------------------- C03: aliased arguments
@case(overlapping)
def c03_writes_show_through_after_a_print():
    def fn(both):
        t, u = both
        t.add_(10)
        print(float(u[0, 0]))
        u[1] *= 2
        if t[2, 0] > 50:
            t[2] -= 40
        return u[1], t.sum()

    return fn, None


@case(lambda: torch.arange(4) * 5_000_000_000)
def c03_reinterpreted_after_an_item():
    def fn(x):
        low = x.view(torch.int32)
        first = low[2].item()
        x[1] = first + 1
        return low, low[2] + 1

    return fn, None


# ---------------------------------------- C05: effects on what outlives the call
@case(ones(3))
def c05_class_level_list_and_attribute():
    class Log:
        seen, factor = [], 1

    def fn(x):
        Log.seen.append(len(Log.seen))
        print(Log.seen)
        Log.factor = Log.factor + 1
        return x * Log.factor * len(Log.seen)

    return fn, Log.__dict__["seen"]


@case(ones(3))
def c05_ordered_dict_default_dict_and_deque():
    order = collections.OrderedDict(a=1, b=2)
    tally, last = collections.defaultdict(int), collections.deque([1], maxlen=3)

    def fn(x):
        order.move_to_end("a" if x.sum() > 2 else "b")
        order["c"] = order.pop("c", 0) + 1
        tally["n"] += order["c"]
        last.append(tally["n"])
        print(list(order), dict(tally), list(last))
        x.mul_(0.5)
        return x + tally["n"] + len(last), list(order)

    return fn, [order, tally, last]


@case(ones(3))
def c05_cells_globals_and_slots():
    class Slotted:
        __slots__ = ("count",)

    box, total = Slotted(), 0
    box.count = 0

    def fn(x):
        nonlocal total
        total += int(x.sum())
        box.count += 1
        print(total, box.count)
        total += box.count
        return x * total

    return fn, None


@case(ones(3))
def c05_setattr_getattr_and_properties():
    class Box:
        def __init__(self):
            super().__setattr__("log", [])

        def __setattr__(self, name, value):
            self.log.append(name)
            super().__setattr__(name, value)

        def __getattr__(self, name):
            self.log.append("?" + name)
            return 1

        @property
        def twice(self):
            return self.number * 2

        @twice.setter
        def twice(self, value):
            self.number = value // 2

    box = Box()

    def fn(x):
        y = x + box.number
        box.twice = int(y.sum())
        print(box.log)
        del box.number
        return y + box.twice

    return fn, box


# ---------------------------------------- C07: generators
@case(ones(2))
def c07_generator_with_host_steps():
    def fn(x):
        items = [1, 2, 3]

        def walk():
            for item in items:
                print(item)
                if len(items) < 6 and x.sum() > 0:
                    items.append(item * 10)
                got = yield item
                if got:
                    items.append(got)

        made = walk()
        first = next(made)
        second = made.send(7)
        return [x * item for item in made], first, second, items

    return fn, None


@case(ones(2))
def c07_generator_closed_and_failing():
    notes = []

    def fn(x):
        def walk():
            try:
                yield x + 1
                yield x + 2
            finally:
                notes.append(float(x.sum()))

        made = walk()
        y = next(made)
        made.close()
        failing = walk()
        next(failing)
        try:
            failing.throw(KeyError("thrown"))
        except KeyError as error:
            notes.append(str(error))
        return y

    return fn, notes


# ---------------------------------------- C09: exceptions
@case(ones(2, 3), lambda: [0])
def c09_effects_up_to_the_error_stay():
    def fn(x, count):
        count[0] += 1
        x.add_(1)
        print("before", count[0])
        y = x @ x if x.sum() > 20 else x
        count[0] += 10
        return y

    return fn, None


@case(ones(2, 3), ones(2))
def c09_handlers_finally_and_causes():
    notes = []

    def fn(x, y):
        try:
            try:
                x.sum(7)
            except IndexError as error:
                notes.append(type(error).__name__)
                raise LookupError(f"no {tuple(x.shape)}") from error
            finally:
                notes.append("finally")
                x.mul_(2)
        except LookupError as error:
            notes.append(repr(error.__cause__)[:10])
        try:
            torch.linalg.inv(x)
        except RuntimeError:
            y = y + 1
        if y.sum() > 3:
            raise ValueError(f"{float(x[0, 0])}")
        return y

    return fn, notes


@case(ones(2))
def c09_context_managers_that_swallow():
    class Noted:
        def __enter__(self):
            notes.append("in")

        def __exit__(self, kind, error, traceback):
            notes.append(kind and kind.__name__)
            return kind is KeyError

    notes = []

    def fn(x):
        with Noted():
            x.add_(1)
            {}[float(x[0]) if x[0] > 2 else "key"]
        with Noted():
            print("second")
        return x * len(notes)

    return fn, notes


# ---------------------------------------- C13, C15: numbers and lengths that change
@case(ones(2), 0, between={n: lambda p: setattr(p, "args", (p.args[0], p.args[1] + 1))
                           for n in range(1, 8)}, calls=8)
def c15_bounds_of_a_loop_with_a_print():
    seen = []

    def fn(x, end):
        for step in range(end % 4):
            x = x + step
            if step == 2:
                print("two")
                break
            seen.append(step)
        return x, len(seen)

    return fn, seen


@case(lambda: [torch.ones(2)], between={n: lambda p: p.args[0].append(torch.ones(2) * 2)
                                        for n in range(1, 6)}, calls=6)
def c15_lists_that_grow():
    def fn(parts):
        total = parts[0] * 0
        for number, part in enumerate(parts):
            total = total + part * number
            if total.sum() > 20:
                return total, number
        return total, len(parts)

    return fn, None


# ---------------------------------------- C17: ambient state
@case(ones(4, 4))
def c17_autocast_around_a_print():
    def fn(x):
        with torch.autocast("cpu"):
            y = x @ x
            print(y.dtype)
            z = y @ x
        return y, z, x @ x

    return fn, None


# ---------------------------------------- C19: random numbers
@case(ones(4))
def c19_draws_between_host_steps():
    order = [1, 2, 3, 4]

    def fn(x):
        random.shuffle(order)
        y = torch.rand(4) + x
        if random.random() > 0.5:
            y = nn.functional.dropout(y, 0.5)
        print(order)
        return torch.bernoulli(x / 2) + y, random.sample(range(9), 2)

    return fn, order


# ---------------------------------------- C11: hooks
@case(ones(2, 3), calls=4)
def c11_hooks_that_print_and_count():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    nn.init.constant_(model[0].weight, 0.5)
    nn.init.zeros_(model[0].bias)
    calls = []

    def hook(module, args, out):
        calls.append(len(calls))
        print("hook", float(out.sum()))
        return out + len(calls)

    def fn(x):
        handle = model[0].register_forward_hook(hook)
        y = model(x)
        handle.remove()
        return y, model(x)

    return fn, calls


# ---------------------------------------- C29: custom ops
@pytest.fixture(scope="module", autouse=True)
def custom_ops():
    library = torch.library.Library("preheat_test_effects", "DEF")
    library.define("fill_first(Tensor(a!) x, float v) -> ()")
    library.impl("fill_first", lambda x, v: x[:1].fill_(v) and None, "CPU")
    yield
    library._destroy()


@case(lambda: torch.arange(6.0).reshape(3, 2))
def c29_custom_op_writes_a_view_and_a_branch_reads():
    def fn(x):
        row = x[1:]
        torch.ops.preheat_test_effects.fill_first(row, float(x.sum()))
        if x[1, 0] > 40:
            row.zero_()
        return row + 1, x * 2

    return fn, None


@pytest.mark.parametrize("backend", ["preheat", "eager"])
@pytest.mark.parametrize("name", list(CASES))
def test_effects(name, backend):
    make, calls = CASES[name]
    same_program(make, calls=calls, settings={"backend": backend})


def test_optimizer_with_a_schedule():
    """C13: the learning rate and the betas move on every step."""

    def make():
        model = nn.Linear(4, 4)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=False)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=100)
        between = {number: lambda program: schedule.step() for number in range(1, 6)}
        return Program(optimizer.step, (), watch=model, between=between)

    same_program(make, calls=6)
