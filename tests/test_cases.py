"""Cases from public bug reports that concern inference, each as its whole kind.

Every program must do what eager does; whether it is compiled or runs eager with a reason is its own
business, except where a test says so. The numbers are pytorch issues.
"""

import collections
import copy
import random

import pytest
import torch
from torch import nn

import preheat
from same import Program, same, same_program


# ---------------------------------------- C01: #174074, #183986 overlapping writes
def _rows_added(x, rows):
    x[:] += x[rows]
    return x.sum(0)


def _put_back(x, rows):
    x[rows] = x[rows.flip(0)] * 2
    return x + 1


def _shifted(x, rows):
    x[1:].copy_(x[:-1])
    x[:, 1:].add_(x[:, :-1])
    return x


def _transposed(x, rows):
    x.copy_(x.t().clone())
    x.add_(x.t())
    return x * 2


@pytest.mark.parametrize("fn", [_rows_added, _put_back, _shifted, _transposed])
def test_reads_precede_overlapping_writes(fn):
    same(fn, torch.arange(16.0).reshape(4, 4), torch.tensor([0, 2, 0, 3]))


@pytest.mark.parametrize(
    "name, args",
    [
        ("index_add", (0, torch.tensor([0, 0, 2]), torch.ones(3, 3))),
        ("index_copy", (0, torch.tensor([0, 1, 2]), torch.arange(9.0).reshape(3, 3))),
        ("index_fill", (1, torch.tensor([1]), 5.0)),
        ("scatter_add", (0, torch.tensor([[0, 1, 2], [0, 0, 0]]), torch.ones(2, 3))),
        ("index_put", ((torch.tensor([0, 2]),), torch.zeros(2, 3))),
    ],
)
@pytest.mark.parametrize("is_in_place", [False, True])
@pytest.mark.parametrize("is_expanded", [False, True])
def test_indexed_writes_also_on_stride_zero(name, args, is_in_place, is_expanded):
    def fn(x):
        if is_expanded:
            x = x[0].expand(3, 3)
        if is_in_place:
            return getattr(x, name + "_")(*args) + x
        return getattr(x, name)(*args)

    same(fn, torch.arange(9.0).reshape(3, 3))


# ---------------------------------------- C03: #198095, #198101 aliased arguments
def _overlapping(size):
    base = torch.arange(float(size * 3)).reshape(size, 3)
    return base, base[1:]


def test_arguments_that_overlap():
    def fn(t, u):
        t.add_(10)
        return u[1], u + t[1:]

    same(fn, *_overlapping(4))


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t[1:],
        lambda t: t.t(),
        lambda t: t.reshape(-1)[2:8],
        lambda t: t,
        lambda t: t[:, :1].expand(4, 3),
    ],
)
def test_writes_show_through_every_view_of_an_argument(view):
    def fn(t, u):
        before = u.sum()
        t.mul_(2)
        u = u + 1
        return before, u, t

    t = torch.arange(12.0).reshape(4, 3)
    same(fn, t, view(t))


def test_overlap_that_appears_on_a_later_call():
    def make():
        t, u = torch.arange(6.0), torch.arange(6.0)

        def fn(t, u):
            t.add_(1)
            return u * 2

        def alias(program):
            program.args = (t, t[:])

        return Program(fn, (t, u), between={2: alias})

    same_program(make, calls=4)


def test_reinterpreted_integers_read_before_the_overwrite():
    def fn(x):
        low = x.view(torch.int32)[::2].clone()
        early = x.view(torch.int32)
        x[1] = -1
        return low, early, early[2] + low[1]

    same(fn, torch.arange(4) * 5_000_000_000)


# ---------------------------------------- C05: effects on what outlives the call
class Recorder(nn.Module):
    seen = []
    factor = 2

    def forward(self, x):
        type(self).seen.append(len(type(self).seen))
        return x * self.factor * len(self.seen)


@pytest.fixture
def recorder_restored():
    yield
    Recorder.seen, Recorder.factor = [], 2


def _class_level_list():
    Recorder.seen, Recorder.factor = [], 2
    return Program(Recorder(), (torch.ones(2),), watch=Recorder.__dict__["seen"])


def _class_attribute_changed():
    class Scaled(nn.Module):
        factor = 2

        def forward(self, x):
            return x * self.factor

    def change(program):
        Scaled.factor = 5

    return Program(Scaled(), (torch.ones(2),), between={1: change})


def _closure_dict_updated_by_a_local_class():
    log = {}

    def fn(x):
        class Local:
            def note(self, key):
                log[key] = log.get(key, 0) + 1
                return log[key]

        return x + Local().note("a") + Local().note("b")

    return Program(fn, (torch.ones(2),), watch=log)


def _move_to_end_on_an_argument():
    def fn(x, order):
        order.move_to_end("a")
        order["c"] = order.pop("b") + 1
        return x + len(order), list(order)

    order = collections.OrderedDict(a=1, b=2)

    def put_back(program):
        order["b"] = 7

    return Program(fn, (torch.ones(2), order), between={1: put_back, 2: put_back})


def _global_written():
    def fn(x):
        counts["calls"] += 1
        return x + counts["calls"]

    counts = collections.Counter()
    return Program(fn, (torch.ones(2),), watch=counts)


def _attribute_deleted_and_made():
    box = nn.Module()
    box.a = 1

    def fn(x):
        if hasattr(box, "a"):
            del box.a
            return x
        box.a = 3
        return x * box.a

    return Program(fn, (torch.ones(2),), watch=box)


@pytest.mark.parametrize(
    "make",
    [
        _class_level_list,
        _class_attribute_changed,
        _closure_dict_updated_by_a_local_class,
        _move_to_end_on_an_argument,
        _global_written,
        _attribute_deleted_and_made,
    ],
)
def test_effects_are_visible_every_call(make, recorder_restored):
    same_program(make, calls=4)


# ---------------------------------------- C07: #175855, #198190 generators
def test_generator_over_a_list_that_it_appends_to():
    def fn(x):
        items = [1, 2, 3]

        def walk():
            for item in items:
                if len(items) < 6:
                    items.append(item * 10)
                yield item

        return [x * item for item in walk()], len(items)

    same(fn, torch.ones(2))


def test_suspended_generator_stays_a_real_generator():
    def fn(x):
        def produce():
            got = yield x + 1
            got = yield x * got
            return "done", got

        made = produce()
        first = next(made)
        return made, first

    eager, compiled = fn(torch.ones(2)), preheat.compile(fn, options={"cache": False})
    for _ in range(3):
        made, first = compiled(torch.ones(2))
        assert torch.equal(first, eager[1])
        assert torch.equal(made.send(3), torch.full((2,), 3.0))
        with pytest.raises(StopIteration) as stop:
            made.send("end")
        assert stop.value.value == ("done", "end")


# ---------------------------------------- C09: #198192, #175608 exceptions
def _bad_dim(x):
    return x.sum(7)


def _bad_inverse(x):
    return torch.linalg.inv(x)


def _bad_shapes(x):
    return x @ x


def _bad_index(x):
    return x[torch.tensor([99])]


def _user_error(x):
    raise LookupError(f"no {tuple(x.shape)}")


FAILING = [
    (_bad_dim, IndexError),
    (_bad_inverse, RuntimeError),
    (_bad_shapes, RuntimeError),
    (_bad_index, IndexError),
    (_user_error, LookupError),
]


@pytest.mark.parametrize("fail, kind", FAILING)
def test_exceptions_reach_handlers_inside_and_outside(fail, kind):
    def caught(x):
        y = x + 1
        try:
            y = fail(y)
        except kind as error:
            return y * 2, type(error).__name__, str(error)
        return y

    def cleaned_up(x):
        log = []
        try:
            try:
                return fail(x)
            finally:
                log.append("cleaned")
        except kind:
            return x - 1, log

    x = torch.ones(2, 3)
    same(caught, x)
    same(cleaned_up, x)
    same(fail, x)


# ---------------------------------------- C11: #117758, #115750 late hooks
def test_hooks_fire_when_registered_and_stop_when_removed():
    def make():
        model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
        nn.init.constant_(model[0].weight, 0.5)
        nn.init.constant_(model[2].weight, -0.5)
        handles = []

        def outer(program):
            handles.append(model.register_forward_hook(lambda m, args, out: out * 10))

        def inner(program):
            handles.append(model[1].register_forward_pre_hook(lambda m, args: (args[0] + 1,)))

        def remove(program):
            handles.pop(0).remove()

        return Program(
            model, (torch.ones(2, 3),), between={1: outer, 2: inner, 3: remove, 4: remove}
        )

    same_program(make, calls=6)


def test_global_hooks_fire():
    def make():
        handles = []

        def register(program):
            handles.append(
                nn.modules.module.register_module_forward_hook(lambda m, args, out: out + 1)
            )

        def remove(program):
            handles.pop().remove()

        return Program(nn.Identity(), (torch.ones(2),), between={1: register, 2: remove})

    same_program(make, calls=3)


# ---------------------------------------- C13, C15: changing numbers, bounded compiles
class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.calls


def test_a_module_that_counts_its_calls():
    seen = same(Counting(), torch.ones(2), calls=12)
    assert seen.counters["compiles"] <= 2


@pytest.mark.parametrize("calls", [12])
def test_loop_bounds_that_change(calls):
    def make():
        def fn(x, start, end):
            for step in range(start, end):
                x = x + step
            return x

        def bounds(number):
            def change(program):
                program.args = (program.args[0], number % 3, number)

            return change

        return Program(fn, (torch.ones(2), 0, 1), between={n: bounds(n) for n in range(1, calls)})

    assert same_program(make, calls=calls).counters["compiles"] <= 8


def test_lists_of_growing_length():
    def make():
        def fn(parts):
            total = parts[0] * 0
            for part in parts:
                total = total + part
            return total, len(parts)

        def grow(program):
            program.args[0].append(torch.full((2,), float(len(program.args[0]))))

        return Program(fn, ([torch.ones(2)],), between={n: grow for n in range(1, 20)})

    assert same_program(make, calls=20).counters["compiles"] <= 8


# ---------------------------------------- C17: #191110, #100977 ambient state
def test_autocast_follows_the_ambient_dtype():
    def make():
        state = {"dtype": torch.bfloat16}
        linear = nn.Linear(8, 8)
        nn.init.eye_(linear.weight)

        def fn(x):
            return linear(x)

        def call(x):
            with torch.autocast("cpu", dtype=state["dtype"]):
                return fn(x)

        def half(program):
            state["dtype"] = torch.float16

        return Program(call, (torch.ones(2, 8),), between={1: half})

    same_program(make, calls=3)


def test_autocast_inside_without_dtype():
    def fn(x, w):
        with torch.autocast("cpu"):
            y = x @ w
        return y, y.dtype, (x @ w).dtype

    def make():
        def other(program):
            torch.set_autocast_dtype("cpu", torch.float16)

        def back(program):
            torch.set_autocast_dtype("cpu", torch.bfloat16)

        return Program(fn, (torch.ones(4, 4), torch.eye(4)), between={1: other, 2: back})

    same_program(make, calls=3)


def test_inference_call_then_training_call():
    def run(call):
        model = nn.Linear(3, 2, bias=False)
        nn.init.constant_(model.weight, 0.5)
        compiled = call(model)
        x = torch.ones(2, 3)
        with torch.no_grad():
            first = compiled(x)
        second = compiled(x)
        second.sum().backward()
        with torch.inference_mode():
            third = compiled(x)
        return (
            first,
            second.detach(),
            third.clone(),
            model.weight.grad,
            (first.requires_grad, second.requires_grad, third.is_inference()),
        )

    eager = run(lambda model: model)
    compiled = run(lambda model: preheat.compile(model, options={"cache": False}))
    assert eager[4] == compiled[4]
    for expected, found in zip(eager[:4], compiled[:4]):
        assert torch.allclose(expected, found)


def test_default_dtype_changed_between_calls():
    def make():
        def fn(x):
            return torch.ones(2) + x, torch.tensor([0.5])

        def double(program):
            torch.set_default_dtype(torch.float64)

        def single(program):
            torch.set_default_dtype(torch.float32)

        return Program(fn, (torch.ones(2, dtype=torch.float32),), between={1: double, 2: single})

    same_program(make, calls=4)


# ---------------------------------------- C19: random numbers
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x + random.random(),
        lambda x: (random.shuffle(order := [1, 2, 3, 4]), x * order[0])[1],
        lambda x: x * random.sample(range(9), 2)[1],
        lambda x: (random.seed(3), x * random.random())[1],
        lambda x: nn.functional.dropout(x, 0.5) + nn.functional.dropout(x, 0.5),
        lambda x: (
            torch.rand_like(x),
            torch.randn(2),
            torch.randint(0, 9, (3,)),
            torch.randperm(5),
        ),
        lambda x: (torch.manual_seed(5), torch.rand(2) + x[:2])[1],
        lambda x: torch.bernoulli(torch.full_like(x, 0.5)),
        lambda x: torch.multinomial(torch.ones(6), 3),
    ],
)
def test_draws_are_fresh_and_leave_the_generators_as_eager(fn):
    same(fn, torch.ones(6), calls=4)


# ---------------------------------------- C21: #105264, #178013 integers
@pytest.mark.parametrize(
    "fn",
    [
        lambda a, b: (a + b).to(torch.int16),
        lambda a, b: a.to(torch.int16) + b.to(torch.int16),
        lambda a, b: (a * b, a - b, -a),
        lambda a, b: (a // b, a % b, torch.div(a, b, rounding_mode="trunc"), a / b),
        lambda a, b: (a << 3, a >> 1, a ^ b, ~a, a & b, a | b),
        lambda a, b: (a + 1, a + 1.5, a * True, a.float() + b),
    ],
)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_integers_wrap_and_divide_as_eager(fn, dtype):
    a = torch.tensor([128, 250, 7, 0, 3]).to(dtype)
    b = torch.tensor([128, 10, 2, 5, 1]).to(dtype)
    b[b == 0] = 3
    same(fn, a, b)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
@pytest.mark.parametrize(
    "fn", [lambda a, b: a // b, lambda a, b: a % b, lambda a, b: a.div(b, rounding_mode="trunc")]
)
def test_integer_division_by_zero(fn, dtype):
    same(fn, torch.tensor([4, 5, 6], dtype=dtype), torch.tensor([2, 0, 3], dtype=dtype))


# ---------------------------------------- C23: #93784, #184893 NaN and ties
NAN = torch.tensor([float("nan"), -1.0, 2.0, float("inf"), float("-inf"), -0.0, 0.0, 2.0])


@pytest.mark.parametrize(
    "fn",
    [
        torch.relu,
        lambda x: x.clamp(-1, 1),
        lambda x: torch.maximum(x, x.flip(0)),
        lambda x: torch.minimum(x.flip(0), x),
        lambda x: torch.fmax(x, x.flip(0)),
        lambda x: x.clamp(min=0.5),
        lambda x: (x.max(), x.min(), x.argmax(), x.argmin()),
        lambda x: x.max(0),
        lambda x: x.min(0),
        lambda x: x.reshape(2, 4).max(1),
        lambda x: x.sort(),
        lambda x: x.sign(),
        lambda x: torch.where(x > 0, x, -x),
        lambda x: (x == x.flip(0), x != x, x < 1),
        lambda x: x.softmax(0),
        lambda x: nn.functional.gelu(
            x[:3]
        ),  # at infinity eager's vector code has NaN, its scalar code does not
        lambda x: x.amax(0),
        lambda x: x.relu().sum(),
        lambda x: nn.functional.hardtanh(x),
        lambda x: x.exp().log1p(),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_nan_and_infinity_propagate(fn, dtype):
    same(fn, NAN.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_gelu_at_infinity_is_its_limit(dtype):
    """A stated deviation: eager's vector code gives NaN there, its scalar code the limit, inf."""
    compiled = preheat.compile(nn.functional.gelu, options={"cache": False})
    for _ in range(2):
        found = compiled(torch.full((16,), float("inf"), dtype=dtype))
    assert bool(found.isinf().all()) and bool((found > 0).all())


@pytest.mark.parametrize("values", [[True, False, True], [False, False], [True, True, True, False]])
def test_indices_of_boolean_extremes(values):
    same(lambda x: (x.max(0), x.min(0), x.int().argmax(), x.any(), x.all()), torch.tensor(values))


# ---------------------------------------- random numbers are drawn in the order of memory
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: nn.functional.dropout(x, 0.5),
        lambda x: torch.empty_like(x).bernoulli_(0.3),
        lambda x: torch.bernoulli(x.sigmoid()),
        lambda x: torch.rand_like(x) + x.clone().normal_(),
        lambda x: x.uniform_() + x.clone().exponential_(),
        lambda x: nn.functional.alpha_dropout(x, 0.5, True),
    ],
)
@pytest.mark.parametrize("layout", ["transposed", "every second", "channels last"])
def test_random_numbers_of_any_layout(fn, layout):
    x = torch.randn(2, 4, 6, 6)
    same(
        fn,
        {
            "transposed": x.transpose(0, 3),
            "every second": x[..., ::2],
            "channels last": x.to(memory_format=torch.channels_last),
        }[layout],
    )


# ---------------------------------------- C25: complex numbers
def test_rotary_embedding_by_complex_product():
    def fn(x, angles):
        turned = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * torch.polar(
            torch.ones_like(angles), angles
        )
        return torch.view_as_real(turned).flatten(-2)

    same(fn, torch.randn(2, 4, 8), torch.randn(4, 4))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x * (1 + 2j),
        lambda x: x + torch.tensor(1j),
        lambda x: x.to(torch.complex64).conj() * 2,
        lambda x: torch.fft.rfft(x).abs(),
        lambda x: torch.complex(x, x).imag,
    ],
)
def test_complex_programs_do_as_eager(fn):
    same(fn, torch.randn(8))
    same(fn, torch.randn(()).reshape(1))


# ---------------------------------------- C27: lifetimes
def test_results_stay_intact_and_feed_on():
    f = preheat.compile(lambda x: torch.relu(x) + 1, options={"cache": False})
    g = preheat.compile(lambda x: x * 2 - f(x), options={"cache": False})
    kept, expected = [], []
    for number in range(6):
        x = torch.full((64,), float(number))
        kept.append((f(x), f(f(x)), g(f(x))))
        y = x + 1
        expected.append((y, y + 1, y * 2 - (y + 1)))
    for found, wanted in zip(kept, expected):
        assert all(torch.equal(a, b) for a, b in zip(found, wanted))


def test_a_result_written_to_does_not_change_the_next():
    f = preheat.compile(lambda x: (x + 1, torch.zeros(3)), options={"cache": False})
    x = torch.ones(3)
    for _ in range(4):
        y, zeros = f(x)
        assert torch.equal(y, torch.full((3,), 2.0)) and torch.equal(zeros, torch.zeros(3))
        y.zero_()
        zeros.add_(1)


# ---------------------------------------- C29: custom ops
@pytest.fixture(scope="module")
def custom_ops():
    library = torch.library.Library("preheat_test_cases", "DEF")
    library.define("fill_first(Tensor(a!) x, float v) -> ()")
    library.define("scaled(Tensor x, float v) -> Tensor")
    library.impl("fill_first", lambda x, v: x[:1].fill_(v) and None, "CPU")
    library.impl("scaled", lambda x, v: (x * v).t().contiguous().t(), "CPU")
    yield torch.ops.preheat_test_cases
    library._destroy()


def test_custom_op_writes_through_a_view(custom_ops):
    def fn(x):
        row = x[1:]
        y = custom_ops.scaled(x, 2.0)
        custom_ops.fill_first(row, 9.0)
        return y, custom_ops.scaled(x, 3.0), row + 1

    same(fn, torch.arange(6.0).reshape(3, 2))


# ------------------------------------------------------------- mutations between calls, everywhere
class Tree(nn.Module):
    bias = 0.5

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(2))
        self.scales = [1.0, 2.0]
        self.table = {"gain": 3.0, "on": True}
        self.register_buffer("shift", torch.ones(3))
        for layer in self.layers:
            nn.init.constant_(layer.weight, 0.25)
            nn.init.zeros_(layer.bias)

    def forward(self, x):
        for layer, scale in zip(self.layers, self.scales):
            x = layer(x) * scale
        if self.table["on"]:
            x = x * self.table["gain"]
        return nn.functional.dropout(x + self.shift + self.bias, 0.5, self.training)


MUTATIONS = {
    "submodule swapped": lambda m: m.layers.__setitem__(1, nn.Identity()),
    "submodule appended": lambda m: (m.layers.append(nn.ReLU()), m.scales.append(4.0)),
    "parameter replaced": lambda m: setattr(m.layers[0], "weight", nn.Parameter(torch.eye(3))),
    "parameter written": lambda m: m.layers[0].weight.data.fill_(2.0),
    "parameter data replaced": lambda m: setattr(
        m.layers[0].weight, "data", torch.eye(3)[:, [1, 0, 2]].t()
    ),
    "buffer replaced": lambda m: setattr(m, "shift", torch.zeros(3)),
    "buffer of another dtype": lambda m: setattr(m, "shift", torch.zeros(3, dtype=torch.float64)),
    "buffer of another shape": lambda m: setattr(m, "shift", torch.zeros(1)),
    "list element": lambda m: m.scales.__setitem__(0, 7.0),
    "dict value": lambda m: m.table.__setitem__("gain", -1.0),
    "dict flag": lambda m: m.table.__setitem__("on", False),
    "dict replaced": lambda m: setattr(m, "table", {"gain": 1.0, "on": True}),
    "attribute shadows the class": lambda m: setattr(m, "bias", 9.0),
    "training flag": lambda m: m.train(),
    "training flag of a child": lambda m: m.layers[0].train(),
    "whole module in another dtype": lambda m: (
        m.double(),
        m.float(),
        m.layers[0].weight.data.mul_(2),
    ),
    "bias removed": lambda m: m.layers[0].register_parameter("bias", None),
    "forward replaced": lambda m: setattr(m, "forward", lambda x: x * 100),
    "hook": lambda m: m.layers[1].register_forward_hook(lambda mod, args, out: out + 5),
    "requires_grad": lambda m: m.requires_grad_(False),
    "class of a child": lambda m: setattr(m.layers[0], "__class__", Doubled),
}


class Doubled(nn.Linear):
    def forward(self, x):
        return super().forward(x) * 2


@pytest.mark.parametrize("name", MUTATIONS)
@pytest.mark.parametrize("at", [1, 2])
def test_every_mutation_is_honoured_on_the_next_call(name, at):
    def make():
        return Program(
            Tree().eval(),
            (torch.ones(2, 3),),
            between={at: lambda program: MUTATIONS[name](program.call)},
        )

    same_program(make, calls=4)


def test_method_of_the_class_replaced():
    def make():
        class Local(nn.Module):
            def forward(self, x):
                return self.inner(x)

            def inner(self, x):
                return x + 1

        def change(program):
            Local.inner = lambda self, x: x * 5

        def code(program):
            Local.forward.__code__ = (lambda self, x: self.inner(x) - 3).__code__

        def defaults(program):
            def inner(self, x, by=2):
                return x * by

            Local.inner = inner

        def other_defaults(program):
            Local.inner.__defaults__ = (7,)

        return Program(
            Local(), (torch.ones(2),), between={1: change, 2: code, 3: defaults, 4: other_defaults}
        )

    same_program(make, calls=6)


def test_closure_cell_and_global_rebound():
    def make():
        scale = 2.0

        def fn(x):
            return x * scale * GLOBAL["value"]

        def rebind(program):
            nonlocal scale
            scale = 3.0

        def change_global(program):
            GLOBAL["value"] = 5.0

        GLOBAL["value"] = 1.0
        return Program(fn, (torch.ones(2),), between={1: rebind, 2: change_global})

    same_program(make, calls=4)


GLOBAL = {"value": 1.0}


@pytest.mark.parametrize(
    "first, second",
    [
        (torch.ones(2, 3), torch.ones(3, 2).t()),
        (torch.ones(2, 3), torch.ones(2, 3).double()),
        (torch.ones(2, 3), torch.ones(4, 3)),
        (torch.ones(2, 3), torch.ones(1, 3)),
        (torch.ones(2, 3), torch.ones(0, 3)),
        (torch.ones(2, 3), torch.ones(2, 6)[:, ::2]),
        (torch.ones(2, 3), torch.ones(2, 3, 1)),
        (torch.ones(2, 3), torch.ones(3).expand(2, 3)),
        (torch.ones(2, 3), torch.ones(2, 3, dtype=torch.int32)),
        (torch.ones(2, 3), nn.Parameter(torch.ones(2, 3))),
        (torch.ones(7)[1:], torch.ones(6)),
    ],
)
def test_arguments_of_another_kind_on_the_next_call(first, second):
    def make():
        def fn(x):
            return (x * 2 + 1).sum(0), x.shape, x.dtype, x[:1]

        def change(program):
            program.args = (copy.deepcopy(second),)

        def back(program):
            program.args = (copy.deepcopy(first),)

        return Program(fn, (copy.deepcopy(first),), between={1: change, 2: back})

    same_program(make, calls=4)
