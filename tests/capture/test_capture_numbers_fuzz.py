"""Random programs of a tensor and numbers: whatever is done with a number, replays are eager's.

Each program is a few random statements on numbers from an argument, an attribute, a dict and a list;
it is called with numbers that change in turn, and compared with plain Python after every call. A
number that C looks at unseen would show as a result of an earlier call.
"""

import random

import pytest
import torch

import preheat

SEEDS = range(40)
STATEMENTS = """
{v} = {a} + {b}|{v} = {a} - {b}|{v} = {a} * {b}|{v} = {a} / 4|{v} = {a} // 3|{v} = {a} % 5|{v} = -{a}
{v} = abs({a})|{v} = min({a}, {b})|{v} = max({a}, {b}, 1)|{v} = float({a})|{v} = int({a})
{v} = round({a})|{v} = round({a}, 1)|{v} = {a} ** 2|{v} = {a} if {a} < {b} else {b}|{v} = {a} or {b}
{v} = [{a}, {b}][1]|{v} = sum([{a}, {b}])|{v} = sorted([{a}, {b}])[0]|{v} = dict(k={a})['k']
{v} = [n for n in ({a}, {b})][0]|{v} = len(str({a}))|{v} = len(f'{{{a}:.1f}}')|{v} = {a} == {b}
{v} = ({a}, 1) == ({b}, 1)|{v} = {a} in [{b}, 2]|{v} = {a} in {{2, 3}}|{v} = hash({a}) % 97
{v} = {{{a}: 1, 2: 5}}.get({b}, 0)|{v} = divmod({a}, 3)[0]|{v} = math.sqrt(abs({a}))
{v} = math.floor({a})|{v} = int({a}) & 3|{v} = list(range(int({a}) % 7))[-1:] == [3]
{v} = next(iter([{a}]))|{v} = list(map(abs, [{a}, {b}]))[1]|{v} = [*[{a}], {b}][0]
{v} = (lambda q, *r, **k: q + r[0] + k['z'])({a}, {b}, z={a})|{v} = Pair({a}, {b}).second
{v} = Pair({a}, {b}).total()|{v} = bool({a})|{v} = not {a}|{v} = int({a}) is int({b})|{v} = type({a}) is float
{v} = isinstance({a}, int)|{v} = functools.reduce(operator.add, [{a}, {b}])|{v} = max([{a}, {b}])
{v} = [1, 2, 3][int({a}) % 3]|{v} = (1, 2, 3)[: int({a}) % 3]== (1, 2)|{v} = 'ab' * (int({a}) % 3) == 'ab'
{v} = operator.add({a}, {b})|{v} = functools.partial(operator.mul, {a})({b})|{v} = ({a}).__add__(1)
{v} = list(zip([{a}], [{b}]))[0][1]|{v} = list(enumerate([{a}], int({b}) % 3))[0][0]
{v} = {a}; {v} += {b}|{v} = [{a}] * 2 == [{b}, {a}]|{v} = any([{a} > 1, {b}])|{v} = all([{a}, {b}])
{v} = int('%d' % {a})|{v} = copy.copy([{a}])[0]|{v} = float(str({a}))|{v} = complex({a}).real
{v} = ({a} < {b}) + 1|{v} = [{a}, {b}].index({a})|{v} = [{a}, {b}, {a}].count({a})
{v} = bool({{{a}}} & {{{b}}})|{v} = len({{{a}, {b}}})|{v} = ({a}).real|{v} = pow({a}, 2)
{v} = one_of({a}, {b})|{v} = Point({a}, {b}).y|{v} = Point({a}, {b}) == Point({b}, {a})
{v} = list(gen({a}, {b}))[1]|{v} = (lambda: {a})()|{v} = [*{{k: {a} for k in 'pq'}}.values()][0]
{v} = '{{}}'.format({a})[0] == '3'|{v} = ','.join([str({a})]) == '3'|{v} = caught({a}, {b})
{v} = list(itertools.islice(itertools.count(int({a})), 2))[1]|{v} = list(itertools.accumulate([{a}, {b}]))[1]
{v} = list(itertools.repeat({a}, 2))[0]|{v} = collections.Counter([{a}, {b}])[{a}]
{v} = collections.deque([1, 2, 3], int({a}) % 4 + 1)[0]|{v} = collections.deque([{a}, {b}]).pop()
{v} = {{}}.setdefault('k', {a})|{v} = {{'k': {a}}}.pop('k')|{v} = {{'k': 1}}.get('z', {a})
rows = [1, 2]; rows.insert(int({a}) % 2, {b}); {v} = rows[1]|rows = [{a}]; rows.extend([{b}]); {v} = rows[1]
rows = [1, 2]; rows[int({a}) % 2] = {b}; {v} = rows[0]|rows = {{}}; rows[{a}] = {b}; {v} = rows.get(3, 0)
rows = {{*()}}; rows.add({a}); {v} = 3 in rows|rows = [3, 1]; rows.remove({a}) if {a} in rows else 0; {v} = len(rows)
{v} = bisect.bisect([1, 3, 5], {a})|{v} = copy.deepcopy({{'k': [{a}]}})['k'][0]|{v} = json.dumps([{a}]) == '[3]'
{v} = struct.pack('d', {a}) == struct.pack('d', 3)|{v} = math.isclose({a}, {b})|{v} = math.isfinite({a})
{v} = math.hypot({a}, {b})|{v} = math.exp({a} / 9) + math.log(abs({b}) + 1)|{v} = math.pow(abs({a}), 0.5)
*_, {v} = {a}, {b}|{v} = (e1 := {a}) + e1|{v} = operator.or_(int({a}), 1)|{v} = ~int({a})
{v} = {a} if {a} else {b}|{v} = {a} and {b}|{v} = 1 < {a} <= {b}|{v} = {a} != {a}|{v} = int({a}) << 1
thing.last = {a}; {v} = thing.last + 1|table['z'] = {a}; {v} = table['z']|row[0] = {a}; {v} = row[0] * 2
{v} = thing.rate * {a}|{v} = sum(row)|{v} = max(table.values())|{v} = len([k for k in table if k == 'n'])
{v} = row[-1]|{v} = [*row][1]|{v} = dict(table)['n']|{v} = row == [0, 1.5]|{v} = 1.5 in row|{v} = row.index(row[1])
x = x * {a}|x = x + {a}|x = {a} - x|x = torch.add(x, x, alpha={a})|x = torch.where(x > {a}, x, {b})
x = x.clamp(max={a})|x = torch.lerp(x, x + 1, {a})|x = torch.cat([x, torch.full((1,), float({a}))])[1:]
x = x[int({a}) % 2:].sum() + x|x = x.masked_fill(x > {a}, {b})|x = x.clone(); x[0] = {a}
x = x * torch.tensor([{a}, {b}, 1.0, 2.0]).sum()|x = torch.nn.functional.leaky_relu(x, {a})
x = x.roll(int({a}) % 3)|x = x * torch.tensor({a})|x = x / ({a} * {a} + 1)
""".replace("\n", "|").strip("|").split("|")
HEADER = """
import bisect, collections, copy, dataclasses, functools, itertools, json, math, operator, struct
import torch
@dataclasses.dataclass
class Point:
    x: object
    y: object
def one_of(first, second):
    match first, second:
        case (3, _):
            return second
        case (int(), float() as other):
            return other
    return first
def gen(first, second):
    got = yield first
    yield second + (got or 0)
def caught(first, second):
    try:
        return first / second
    except ZeroDivisionError as error:
        return len(str(error.args))
class Pair:
    def __init__(self, first, second):
        self.first, self.second = first, second
    def total(self):
        return self.first + self.second
def program(x, n, thing, table, row):
    a, b, c, d = n, thing.rate, table['n'], row[1]
"""


class Thing:
    rate = 0.0


def source_of(chance):
    names = ["a", "b", "c", "d"]
    lines = []
    for _ in range(chance.randint(4, 9)):
        row = chance.choice(STATEMENTS)
        made = row.startswith("{v}")
        name = chance.choice(names + ["e", "f"])
        lines.append(row.format(v=name, a=chance.choice(names), b=chance.choice(names)))
        if made and name not in names:
            names.append(name)
    body = "".join(f"    {line}\n" for line in lines)
    return f"{HEADER}{body}    return x, {', '.join(names)}\n"


@pytest.mark.parametrize("seed", SEEDS)
def test_replays_are_those_of_plain_python(seed, monkeypatch):
    monkeypatch.setenv("PREHEAT_STRICT", "1")
    chance = random.Random(seed)
    source = source_of(chance)
    space = {}
    exec(source, space)
    program = space["program"]
    compiled = preheat.compile(
        program, options={"cache": False, "recompile_limit": 100, "node_limit": 400})
    sides = [(program, Thing(), {"n": 2}, [0, 1.5]), (compiled, Thing(), {"n": 2}, [0, 1.5])]
    n, rate, entry, last = 3, 0.5, 2, 1.5
    with torch.no_grad():
        for k in range(10):
            what = chance.randrange(5) if k > 1 else 4
            n = chance.choice([3, 4, 7, 0, 2.5]) if what in (0, 4) else n
            rate = chance.choice([0.5, 0.25, -1.5]) if what in (1, 4) else rate
            entry = chance.choice([2, 5, 3]) if what in (2, 4) else entry
            last = chance.choice([1.5, 2.5]) if what in (3, 4) else last
            results = []
            for function, thing, table, row in sides:
                thing.rate, table["n"], row[1] = rate, entry, last
                results.append(outcome(
                    function, (torch.linspace(-1, 2, 4), n, thing, table, row)))
            check(source, *results)
            states = [repr((thing.__dict__, table, row)) for _, thing, table, row in sides]
            assert states[0] == states[1], (source, *states)


def outcome(function, args):
    try:
        return function(*args)
    except Exception as error:
        return (type(error), str(error))


def check(source, expected, found):
    assert len(found) == len(expected), (source, expected, found)
    for one, other in zip(expected, found):
        if isinstance(one, torch.Tensor):
            torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5, equal_nan=True, msg=source)
        else:
            assert type(one) is type(other) and repr(one) == repr(other), (source, one, other)
