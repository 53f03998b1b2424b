"""Numbers in tensors, tensors as keys, missing keys of a defaultdict, marks for profilers."""

import itertools
from collections import defaultdict

import pytest
import torch

import preheat
from tests.training.twins import alike, captures

def agree(program, *rounds):
    """`program`, compiled, on each of the arguments that `rounds` make, is as in eager."""
    compiled = preheat.compile(program, options={"cache": False})
    for make in rounds:
        first, second = make(), make()
        with torch.no_grad():
            alike(program(*first), compiled(*second))
        alike(first, second)


def counter(start):
    return lambda: (torch.ones(3), torch.tensor(float(start)))


def test_item_of_a_counter_is_a_number_of_the_program():
    def program(x, count):
        count += 1
        return x * (1 - 0.9 ** count.item()), count.item()

    before = captures()
    agree(program, *map(counter, range(6)))
    assert captures() - before == 1


def test_item_that_decides():
    def program(x, count):
        count += 1
        if count.item() > 3:
            return x + count.item()
        return x - 1

    agree(program, *map(counter, (0, 1, 2, 3, 4, 1, 7)))


@pytest.mark.parametrize("change", [
    lambda x, count: x.sum().add_(count), lambda x, count: count.copy_(x[0]) + 1,
    lambda x, count: count.mul_(x[1]), lambda x, count: count.view(1).add_(2),
    lambda x, count: torch.add(x[0], 1, out=count), lambda x, count: count.fill_(7.5).sub_(0.1),
    lambda x, count: (count * 3 - 0.1) / 7, lambda x, count: count.add(1, alpha=0.3),
    lambda x, count: count.div_(0.0), lambda x, count: count.sqrt_(),
    lambda x, count: count.pow_(2).add_(count),
], ids=range(11))
def test_item_of_what_other_ops_have_written(change):
    def program(x, count):
        made = change(x, count)
        return x * made.item(), count.item()

    agree(program, *map(counter, range(1, 5)))


def test_item_of_memory_that_is_written_through_another_tensor():
    def program(x, counts):
        one, two = counts[0], counts[1]
        one += 1
        counts.mul_(2)
        return x * one.item() + two.item()

    agree(program, *[lambda k=k: (torch.ones(2), torch.tensor([float(k), 5.0])) for k in range(4)])


def test_item_of_inputs_that_share_memory():
    def program(x, a, b):
        a += 1
        return x * b.item() + a.item()

    def shared(k):
        both = torch.tensor([float(k), 2.0])
        return torch.ones(2), both[0], both[0]

    def apart(k):
        return torch.ones(2), torch.tensor(float(k)), torch.tensor(2.0)

    agree(program, *[lambda k=k: (shared, apart)[k % 2](k) for k in range(6)])


# ------------------------------------------------------------------------------- a dict of tensors
def test_a_dict_that_finds_tensors():
    def program(table, keys):
        found = [table.get(key) for key in keys]
        for key in keys:
            if key not in table:
                table[key] = key + 1
            table[key] = table[key] * 2
        return found, [table[key] for key in keys]

    def rounds(k):
        keys = [torch.ones(2) * place for place in range(3)]
        return {key: key + k for key in keys[:k % 3]}, [*keys, keys[0]]

    compiled = preheat.compile(program, options={"cache": False})
    for k in range(6):
        (table, keys), (same, same_keys) = rounds(k), rounds(k)
        with torch.no_grad():
            alike(program(table, keys), compiled(same, same_keys))
        alike(list(table.values()), list(same.values()))


def test_a_defaultdict_makes_what_is_missing():
    def program(table, names):
        for name in names:
            table[name].append(len(table[name]))
        return dict(table)

    compiled = preheat.compile(program, options={"cache": False})
    tables = defaultdict(list), defaultdict(list)
    for names in itertools.chain(["ab", "ab", "abc", "", "d"] * 2):
        first, second = program(tables[0], names), compiled(tables[1], names)
        assert first == second and tables[0] == tables[1]
    plain = defaultdict(None, {"a": []})
    with pytest.raises(KeyError, match="b"):
        compiled(plain, "ab")
    assert plain == {"a": [0]}


# ------------------------------------------------------------------------------- marks of profilers
def test_marks_of_profilers_break_no_graph():
    def program(x):
        with torch.autograd.profiler.record_function("a"):
            y = x + 1
            try:
                with torch.profiler.record_function("b") as mark:
                    y = y * 2
                    if len(x) > 2:
                        raise ValueError(mark.name)
            except ValueError as error:
                return y, str(error)
        return y, ""

    explanation = preheat.explain(program)(torch.ones(2))
    assert (explanation.graph_count, explanation.break_count) == (1, 0)
    compiled = preheat.compile(program, options={"cache": False})
    for size in (2, 3, 2, 3):
        alike(program(torch.ones(size)), compiled(torch.ones(size)))
    with torch.profiler.profile() as profile:
        compiled(torch.ones(2))
    assert {"a", "b"} <= {event.name for event in profile.events()}


def test_a_mark_that_is_left_by_plain_python():
    def program(x):
        with torch.autograd.profiler.record_function("a"):
            yield x + 1
            yield x + 2

    def consumed(x):
        return sum(program(x))

    agree(consumed, *[lambda: (torch.ones(2),)] * 3)


def test_a_tensor_that_is_a_key_and_another_one_on_the_next_call():
    keys = torch.ones(1), torch.ones(1)
    table = {key: torch.full((2,), float(place)) for place, key in enumerate(keys)}

    def program(key):
        return table[key] + 1

    compiled = preheat.compile(program, options={"cache": False})
    with torch.no_grad():
        for place in (0, 0, 1, 1, 0, 1):
            alike(program(keys[place]), compiled(keys[place]))
        table[keys[0]] = torch.full((2,), 7.0)
        for place in (0, 1, 0):
            alike(program(keys[place]), compiled(keys[place]))


def test_a_tensor_given_for_a_number_is_the_number_in_it():
    """`alpha` and `value`: of quotients and negations too; a divisor that is 0 is another variant."""
    def program(x, a, b):
        return x.add(x, alpha=-(a / b)), torch.addcmul(x, x, x, value=a), x.sub(x, alpha=a)

    call, x = preheat.compile(program, options={"cache": False}), torch.randn(5)
    before = preheat.counters()
    with torch.no_grad():
        for k in range(8):
            a, b = torch.tensor(0.5 * k + 1), torch.tensor(float(k + 1))
            torch.testing.assert_close(call(x, a, b), program(x, a, b), rtol=1e-6, atol=1e-7)
        now = preheat.counters()
        assert (now["captures"] - before["captures"], now["breaks"] - before["breaks"]) == (1, 0)
        a, b = torch.tensor(1.0), torch.tensor(0.0)
        for found, wanted in zip(call(x, a, b), program(x, a, b)):
            assert torch.equal(found.nan_to_num(), wanted.nan_to_num())


def test_a_tensor_that_is_an_operand_keeps_its_gradient():
    def program(x, t):
        return x.masked_fill(x > 0, value=t)

    call, x = preheat.compile(program, options={"cache": False}), torch.randn(50)
    for k in range(4):
        t = torch.tensor(float(k), requires_grad=True)
        y = call(x, t)
        y.sum().backward()
        assert torch.equal(y, program(x, t)) and t.grad == (x > 0).sum()
