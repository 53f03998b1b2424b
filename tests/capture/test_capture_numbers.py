"""Runtime numbers: a number that changed once costs no further capture, and stays exact."""

import math
from types import SimpleNamespace

import pytest
import torch

import preheat
from tests.same import Program, same, same_program

X = torch.linspace(-2, 3, 24).reshape(4, 6)


@pytest.fixture(autouse=True)
def strict(monkeypatch):
    monkeypatch.setenv("PREHEAT_STRICT", "1")


class Thing:
    """What the programs keep their numbers in."""

    def __init__(self, **numbers):
        self.__dict__.update(numbers)


def captures_of(function, calls):
    """How many captures `calls` cost; each result is eager's."""
    compiled = preheat.compile(function, options={"cache": False})
    before = preheat.counters()["captures"]
    with torch.no_grad():
        for args in calls:
            expected = function(*args)
            found = compiled(*args)
            check_same(found, expected)
    return preheat.counters()["captures"] - before


def check_same(found, expected):
    if isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype and found.shape == expected.shape
        tolerance = {2: 1e-2, 4: 2e-6}.get(expected.itemsize, 1e-12)
        tolerance *= expected.is_floating_point()
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=0, equal_nan=True)
    elif isinstance(expected, (list, tuple)):
        assert type(found) is type(expected) and len(found) == len(expected)
        for pair in zip(found, expected):
            check_same(*pair)
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        check_same(list(found.values()), list(expected.values()))
    else:
        assert type(found) is type(expected) and repr(found) == repr(expected)


FLOATS = [0.5, 0.25, -1.75, 1e-3, 3.0, 0.0]
INTS = [3, 4, -7, 1000, 0, 300]

# Programs of a tensor and a number in which the number is only calculated with.
CALCULATED = {
    "mul": lambda x, n: x * n, "mul left": lambda x, n: n * x, "add": lambda x, n: x + n,
    "sub left": lambda x, n: n - x, "alpha": lambda x, n: torch.add(x, x, alpha=n),
    "in place": lambda x, n: (x * 1).mul_(n).add_(n), "fill": lambda x, n: (x * 1).fill_(n),
    "full": lambda x, n: torch.full((2, 3), float(n)), "clamp": lambda x, n: x.clamp(max=n),
    "compare tensor": lambda x, n: x > n, "equal tensor": lambda x, n: x == n,
    "where": lambda x, n: torch.where(x > 0, x, n), "lerp": lambda x, n: torch.lerp(x, x + 1, n),
    "masked_fill": lambda x, n: x.masked_fill(x > 0, n),
    "setitem": lambda x, n: torch.cat([x, x]).index_fill_(0, torch.tensor([1]), 0).add(n),
    "addcmul": lambda x, n: torch.addcmul(x, x, x, value=n),
    "addmm": lambda x, n: torch.addmm(x @ x.T, x, x.T, beta=n, alpha=2),
    "half": lambda x, n: x.half() * n + n, "bfloat16": lambda x, n: (x.bfloat16() + n) * n,
    "double": lambda x, n: x.double() * n, "of ints": lambda x, n: x.long() * n,
    "of int32": lambda x, n: x.int() + n, "of bools": lambda x, n: (x > 0) * n,
    "result": lambda x, n: (x, n), "list": lambda x, n: [n, n * 2, x], "dict": lambda x, n: {"n": n},
    "expression": lambda x, n: x * (n * 2 + 1 - n) + -n, "abs": lambda x, n: x * abs(n),
    "float": lambda x, n: x * float(n), "true division": lambda x, n: x * (n / 8),
    "floor division": lambda x, n: x * (n // 2), "modulo": lambda x, n: x * (n % 5),
    "power": lambda x, n: x * n**2, "base": lambda x, n: x * 0.9**n, "min": lambda x, n: x * min(n, n),
    "power of two": lambda x, n: x * pow(n, 2),
    "cosine": lambda x, n: x * math.cos(n * 0.1) ** 2, "appended": lambda x, n: _appended(x, n),
    "branch": lambda x, n: x * n if n > -1000 else x, "truth": lambda x, n: x * (n or n),
    "loop": lambda x, n: sum([x * n for _ in range(3)], x),
}


def _appended(x, n):
    rows = []
    rows.append(n)
    rows.append(x + rows[0])
    return rows


@pytest.mark.parametrize("numbers", [FLOATS, INTS], ids=["float", "int"])
@pytest.mark.parametrize("name", CALCULATED)
def test_a_number_that_is_calculated_with_makes_no_path(name, numbers):
    program = CALCULATED[name]
    if name == "truth":
        numbers = [n for n in numbers if n]
    assert captures_of(program, [(X, n) for n in numbers]) == 2


# Programs that must know the number: captured for each.
THREE = 3
LOOKED_AT = {
    "range": lambda x, n: x * len(range(n)),
    "size": lambda x, n: torch.zeros(n % 7 + 1), "key": lambda x, n: x * {3: 1, 4: 2}.get(n, 5),
    "in a set": lambda x, n: x * (n in {3, 4}), "text": lambda x, n: (x, f"{n}"),
    "divmod": lambda x, n: x * divmod(n, 3)[1], "list index": lambda x, n: x * [1, 2, 3][n % 3],
    "repeat": lambda x, n: x * len([0] * n), "hash": lambda x, n: x * hash(n),
    "nested equality": lambda x, n: x * ((n, 1) == (3, 1)), "str": lambda x, n: x * len(str(n)),
    "dim": lambda x, n: x.sum(n % 2), "bits": lambda x, n: x * (n & 3), "format": lambda x, n: "%d" % n,
    "is": lambda x, n: x * (1 if n is THREE else 2), "max of list": lambda x, n: x * max([n, 2]),
    "round": lambda x, n: x * round(n, -1), "percent": lambda x, n: (x, "%s %s" % (n, n)),
    "sorted": lambda x, n: sorted([n, 3, 100])[0] * x,
}  # fmt: skip


@pytest.mark.parametrize("name", LOOKED_AT)
def test_a_number_that_is_looked_at_is_guarded(name):
    program = LOOKED_AT[name]
    assert captures_of(program, [(X, n) for n in (3, 4, 11, 6, 4)]) >= 2


def test_the_answer_of_a_test_is_guarded_not_the_number():
    def program(x, n):
        return x * n if n < 100 else x - n

    calls = [(X, n) for n in (1, 2, 3, 200, 4, 300, 99, 100, 5)]
    assert captures_of(program, calls) == 3


def test_a_counter_and_a_rate_of_a_module():
    thing = Thing(steps=0, rate=0.1)

    def program(x):
        thing.steps += 1
        thing.rate = thing.rate * 0.5
        return x * thing.rate + thing.steps

    compiled = preheat.compile(program, options={"cache": False})
    before = preheat.counters()["captures"]
    state = (0, 0.1)
    with torch.no_grad():
        for _ in range(8):
            thing.steps, thing.rate = state
            expected = program(X)
            after = thing.steps, thing.rate
            thing.steps, thing.rate = state
            found = compiled(X)
            check_same(found, expected)
            check_same((thing.steps, thing.rate), after)
            state = after
    assert preheat.counters()["captures"] - before <= 3


def test_numbers_in_globals_cells_lists_and_slots():
    rate = 0.5
    rates = [0.5, 1.0]
    groups = [{"lr": 0.5}]

    def program(x):
        return x * rate, x + rates[1], x - groups[0]["lr"]

    compiled = preheat.compile(program, options={"cache": False})
    before = preheat.counters()["captures"]
    with torch.no_grad():
        for k in range(6):
            rate, rates[1], groups[0]["lr"] = 0.1 * k, 0.2 * k, 0.3 * k
            check_same(compiled(X), program(X))
    assert preheat.counters()["captures"] - before == 2


def test_an_int_too_large_for_torch_raises_as_eager_does():
    def program(x, n):
        return x.long() + n

    compiled = preheat.compile(program, options={"cache": False})
    with torch.no_grad():
        for n in (1, 2, 2**62):
            check_same(compiled(X, n), program(X, n))
        same(lambda: program(X, 2**70), lambda: compiled(X, 2**70))


def test_an_expression_without_a_value_raises_as_eager_does():
    def program(x, n):
        return x * (1 / n)

    compiled = preheat.compile(program, options={"cache": False})
    with torch.no_grad():
        for n in (1.0, 2.0, 4.0):
            check_same(compiled(X, n), program(X, n))
        with pytest.raises(ZeroDivisionError):
            compiled(X, 0.0)
        check_same(compiled(X, 8.0), program(X, 8.0))


def test_another_type_is_another_path():
    def program(x, n):
        return x.long() * n

    calls = [(X, n) for n in (1, 2, 3, 0.5, 0.25, True, 4, 0.75)]
    assert captures_of(program, calls) <= 6


def test_the_program_sees_plain_numbers():
    def program(x, n):
        return x * n, type(n) is int, isinstance(n, int), n.__class__ is int, n

    assert captures_of(program, [(X, n) for n in (3, 4, 5)]) == 2


def test_a_tensor_that_needs_gradients_gets_no_symbolic_number():
    def program(x, n):
        return x * n

    compiled = preheat.compile(program, options={"cache": False})
    for n in (2.0, 3.0, 4.0):
        x = X.clone().requires_grad_()
        y = compiled(x, n)
        y.sum().backward()
        assert torch.equal(x.grad, torch.full_like(X, n))


def test_a_write_in_place_beside_a_number():
    buffer, thing = torch.zeros(4), Thing(rate=0.5)

    def program(x):
        buffer.mul_(thing.rate).add_(x, alpha=thing.rate)
        return buffer + 1

    compiled = preheat.compile(program, options={"cache": False})
    with torch.no_grad():
        for k in range(6):
            thing.rate = 0.5 + k / 8
            start = buffer.clone()
            expected, after = program(torch.ones(4)), buffer.clone()
            buffer.copy_(start)
            check_same(compiled(torch.ones(4)), expected)
            check_same(buffer, after)


def test_numbers_go_through_host_calls():
    thing, said = Thing(rate=0.5, steps=1), []

    def program(x):
        group = {"rate": thing.rate}
        y = x * group["rate"]
        said.append(None) if x is None else print(end="")
        print(end="" if thing is said else "")
        return y + group["rate"] + thing.steps, group

    compiled = preheat.compile(program, options={"cache": False})
    with torch.no_grad():
        for k in range(8):
            thing.rate, thing.steps = 0.1 * k, k
            check_same(compiled(X), program(X))


@pytest.mark.parametrize("program, numbers, most", [
    (lambda x, n: x * n**0.5, [0.5, 0.25, 4.0, 2.0, 9.0], 2),
    (lambda x, n: x * abs(n**0.5), [4.0, 2.0, -1.0, 3.0, -1.0], 4),
    (lambda x, n: x * 2**n, [1, 2, 3, -1, 5], 4), (lambda x, n: x * min(n, 2), [0.5, 1.5, 3.5, 4.5], 3),
    (lambda x, n: (x * max(0, n), max(0, n)), [0.5, 1.5, -3.5, -4.5], 3),
])  # fmt: skip
def test_what_hangs_on_a_sign_is_a_test(program, numbers, most):
    assert captures_of(program, [(X, n) for n in numbers]) <= most


def test_an_optimizer_with_a_schedule():
    def train(make_step):
        torch.manual_seed(0)
        weights = [torch.nn.Parameter(torch.randn(3, 3)) for _ in range(2)]
        optimizer = torch.optim.AdamW(weights, lr=0.1)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9**epoch)
        step, captures = make_step(optimizer), []
        for _ in range(7):
            for weight in weights:
                weight.grad = torch.randn(3, 3)
            before = preheat.counters()["captures"]
            step()
            captures.append(preheat.counters()["captures"] - before)
            schedule.step()
        return weights, captures

    expected, _ = train(lambda optimizer: optimizer.step)
    found, captures = train(
        lambda optimizer: preheat.compile(lambda: optimizer.step(), options={"cache": False}))
    check_same([w.detach() for w in found], [w.detach() for w in expected])
    assert not any(captures[4:])


@pytest.mark.parametrize("operation", [
    lambda n: 7 // n, lambda n: 7 % n, lambda n: 1.0 / n, lambda n: math.log(n),
    lambda n: math.sqrt(n - 1),
])
def test_an_operation_whose_result_nobody_needs_still_raises(operation):
    numbers = (1, 2, 3, 0, 2, 0, 5)

    def make():
        holder = SimpleNamespace(n=0)

        def program(x):
            try:
                operation(holder.n)
            except (ZeroDivisionError, ValueError) as error:
                return x - 1, str(error)
            return x + 1

        between = {i: lambda p, n=n: setattr(holder, "n", n) for i, n in enumerate(numbers)}
        return Program(program, (torch.ones(4),), between=between)

    same_program(make, calls=len(numbers))


@pytest.mark.parametrize("backend", ["preheat", "eager"])
def test_both_backends_and_the_cache_take_numbers(backend, tmp_path, monkeypatch):
    monkeypatch.setenv("PREHEAT_CACHE_DIR", str(tmp_path))

    def program(x, n):
        return x * math.sqrt(n) + n / 3, n * 2, torch.nn.functional.leaky_relu(x, n)

    for most in (2, 0):
        compiled, before = preheat.compile(program, backend=backend), preheat.counters()["captures"]
        with torch.no_grad():
            for n in (2.5, 3.5, 4.5, 1.5):
                check_same(compiled(X, n), program(X, n))
        assert preheat.counters()["captures"] - before <= most


@pytest.mark.parametrize("texts", ["abcdefg", ["aa", "b", "", "cc", "", "d", "é", "ü", "e"]])
def test_a_text_that_changes_is_held_over_a_host_call(texts):
    """It is a slot of the point behind the call, and the frames there hold it already."""
    class Box:
        pass

    def make():
        box = Box()

        def program(y):
            held = box.text + ""
            number = y.sum().item()
            return held, box.text, number

        def moved(value):
            return lambda given: setattr(box, "text", value)

        return Program(program, (torch.ones(3),), between={k: moved(t) for k, t in enumerate(texts)})

    same_program(make, calls=len(texts), settings={"backend": "eager"})


def test_the_length_of_a_log_in_a_message():
    def make():
        log = []

        def program(y):
            text = str(len(log))
            number = y.sum().item()
            log.append(number)
            return text, number

        return Program(program, (torch.ones(3),), watch=log,
                       between={k: lambda p, k=k: p.args[0].fill_(k) for k in range(12)})

    same_program(make, calls=12, settings={"backend": "eager"})


@pytest.mark.parametrize("kind", [SimpleNamespace, Thing])
def test_a_counter_is_read_as_it_was_written(kind):
    """The second read of an attribute that C finds in the dict gave the number from before the write."""
    def program(x, box):
        box.n += 1
        return x * box.n

    compiled = preheat.compile(program, options={"cache": False})
    before = preheat.counters()["captures"]
    with torch.no_grad():
        for n in range(2, 9):
            boxes = [kind(n=n) for _ in range(2)]
            check_same(compiled(X, boxes[0]), program(X, boxes[1]))
            assert boxes[0].n == boxes[1].n == n + 1
    assert preheat.counters()["captures"] - before == 2
