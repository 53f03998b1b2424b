"""When a size becomes a symbol: `dynamic`, marks, and what a program that needs one value is told."""

from dataclasses import replace

import pytest
import torch

import preheat
from preheat.ir.scalar import apply, symbol
from preheat.run.executable import Executable
from preheat.run.sized import CALLS_BEFORE_PLAN, MOST_PLANS, Planned, Sized, Template
from tests.processes import printed


@pytest.fixture(autouse=True)
def strict(monkeypatch):
    monkeypatch.setenv("PREHEAT_STRICT", "1")


def captures(function, sizes, mark=lambda x: None, **settings):
    """How many captures calls at these sizes cost; each gives eager's result."""
    settings.setdefault("options", {})
    settings["options"] = {"cache": False, **settings["options"]}
    compiled = preheat.compile(function, **settings)
    before = preheat.counters()["captures"]
    with torch.no_grad():
        for size in sizes:
            x = torch.randn(size)
            mark(x)
            expected, found = function(x), compiled(x)
            assert found.shape == expected.shape and found.stride() == expected.stride()
            torch.testing.assert_close(found, expected)
    return preheat.counters()["captures"] - before


def scaled(x):
    return (x * 2 + x.shape[0]).softmax(-1)


SIZES = [(4, 6), (5, 6), (6, 6), (9, 6), (2, 6), (1, 6), (5, 6)]


def test_static_first_and_a_symbol_from_the_second_size_on():
    assert captures(scaled, SIZES) == 2


def test_another_axis_is_another_capture_that_keeps_the_first_symbol():
    assert captures(scaled, [(4, 6), (5, 6), (7, 8), (9, 12), (4, 9), (8, 2)]) == 3


def test_dynamic_true_from_the_start():
    assert captures(scaled, [(4, 6), (5, 7), (9, 3), (2, 2), (1, 6)], dynamic=True) == 1


def test_dynamic_false_never():
    assert captures(scaled, SIZES[:4], dynamic=False) == 4


def test_one_element_is_no_symbol_until_there_are_more():
    assert captures(scaled, [(1, 6), (4, 6), (5, 6), (1, 6)]) == 2
    assert captures(scaled, [(1, 6), (4, 7), (5, 8), (1, 9)], dynamic=True) == 2


def test_no_elements_are_a_variant_of_their_own():
    assert captures(lambda x: x * 2, [(4, 6), (5, 6), (0, 6), (7, 6), (0, 6)]) == 3


def test_marks():
    assert captures(scaled, SIZES, lambda x: preheat.mark_dynamic(x, 0)) == 1
    assert captures(scaled, SIZES, lambda x: preheat.mark_dynamic(x, (0, -1))) == 1
    assert captures(scaled, SIZES[:3], lambda x: preheat.mark_static(x)) == 3
    assert captures(scaled, SIZES[:3], lambda x: preheat.mark_static(x, 0), dynamic=True) == 3


def test_marks_of_torch_compile():
    def mark(x):
        x._dynamo_dynamic_indices = {0}

    assert captures(scaled, SIZES, mark) == 1


def test_bounds_of_a_mark_are_guards():
    assert captures(
        scaled, [(4, 6), (5, 6), (8, 6)], lambda x: preheat.mark_dynamic(x, 0, min=2, max=8)) == 1
    with pytest.raises(preheat.UserError, match="not within min=2, max=8"):
        preheat.mark_dynamic(torch.ones(9), 0, min=2, max=8)
    with pytest.raises(preheat.UserError, match="no axis 2"):
        preheat.mark_dynamic(torch.ones(3, 4), 2)


def looped(x):
    for _ in range(x.shape[0]):
        x = x + 1
    return x


def test_a_marked_size_that_the_program_fixes_is_an_error_with_line_and_reason():
    compiled = preheat.compile(looped, options={"cache": False})
    x = torch.ones(4, 6)
    preheat.mark_dynamic(x, 0)
    with pytest.raises(preheat.UserError, match=r"test_policy.py:\d+: looped needs one value") as e:
        with torch.no_grad():
            compiled(x)
    assert "arg0.shape[0]" in str(e.value) and "for _ in range(x.shape[0])" in str(e.value)


def test_only_the_decision_is_guarded():
    def program(x):
        return x + 1 if x.shape[0] > 4 else x - 1

    assert captures(program, [(4, 3), (5, 3), (6, 3), (3, 3), (9, 3), (2, 3)], dynamic=True) == 2


def test_equal_sizes_are_a_guard_and_not_a_value():
    def program(x):
        return x + x.t()

    assert captures(program, [(4, 4), (5, 5), (6, 6)], dynamic=True) == 1


def sized_of(compiled):
    """What runs the only variant of a compiled function."""
    (holder,) = [c.cell_contents for c in compiled.__closure__ if hasattr(c.cell_contents, "variants")]
    (variant,) = holder.variants
    assert isinstance(variant.executable, Sized)
    return variant.executable


def test_every_size_has_a_plan_from_one_compile_and_the_last_ones_are_kept():
    compiled = preheat.compile(scaled, dynamic=True, options={"cache": False})
    before = preheat.counters()["compiles"]
    with torch.no_grad():
        for size in range(2, MOST_PLANS + 9):
            x = torch.randn(size, 3)
            torch.testing.assert_close(compiled(x), scaled(x))
    assert preheat.counters()["compiles"] - before == 1
    runs = sized_of(compiled)._instances
    assert all(isinstance(made.run, Planned) for made in runs.values())
    assert list(runs) == [(size, 3) for size in range(9, MOST_PLANS + 9)]


def test_sizes_that_a_condition_leaves_out_get_a_template_of_their_own():
    def program(x):
        return (x.exp() * 2).softmax(-1)  # rows are kept on the stack as long as they fit there

    compiled = preheat.compile(program, dynamic=True, options={"cache": False})
    before = preheat.counters()["compiles"]
    with torch.no_grad():
        for size in ((3, 40), (2, 50), (2, 30000), (3, 41), (1, 20000), (2, 30001)):
            x = torch.randn(size)
            torch.testing.assert_close(compiled(x), program(x))
    assert preheat.counters()["compiles"] - before == 2
    assert len(sized_of(compiled).templates) == 2


def test_sizes_at_which_a_template_is_slow_get_another_while_there_are_few():
    compiled = preheat.compile(scaled, dynamic=True, options={"cache": False})

    def template_of(rows):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(compiled(x), scaled(x))
        return sized._instances[rows, 3].run.template

    with torch.no_grad():
        compiled(torch.randn(2, 3))
        sized = sized_of(compiled)
        make = sized.specialise

        def preferring(graph):
            """A template for all sizes that is a good one for up to twice as many rows."""
            plan, image = make(graph)
            test = apply("le", symbol(plan.symbols[0]), 2 * graph.hints[0][0])
            return replace(plan, preferences=(test,)), image

        first = sized.templates[0] = Template(*preferring(replace(sized.graph, hints=((4, 3),))))
        sized.specialise = preferring
        assert template_of(8) is first and template_of(9) is not first and template_of(18) is template_of(9)
        assert template_of(5) is first and len(sized.templates) == 2
        sized.specialise = lambda graph: None
        assert template_of(100) is first and template_of(101) is first, "it is right all the same"


def test_without_a_template_sizes_that_come_again_get_a_plan_and_others_do_not():
    compiled = preheat.compile(scaled, dynamic=True, options={"cache": False})
    with torch.no_grad():
        compiled(torch.randn(4, 5))
        sized_of(compiled).templates.clear()
        for _ in range(CALLS_BEFORE_PLAN + 3):
            compiled(torch.randn(4, 6))
        for size in range(2, MOST_PLANS):
            compiled(torch.randn(size, 3))
    runs = sized_of(compiled)._instances
    assert [key for key, made in runs.items() if isinstance(made.run, Executable)] == [(4, 6)]


def test_a_size_of_an_attribute_and_of_a_list():
    class Holder:
        def __init__(self):
            self.cache = torch.zeros(2, 3)

        def __call__(self, xs):
            self.cache = torch.cat([self.cache, xs[0]])
            return self.cache.sum(0) + xs[1]

    eager, other = Holder(), Holder()
    compiled = preheat.compile(other.__call__, options={"cache": False})
    before = preheat.counters()["captures"]
    with torch.no_grad():
        for _ in range(12):
            xs = [torch.randn(2, 3), torch.randn(3)]
            torch.testing.assert_close(compiled(xs), eager(xs))
            assert torch.equal(eager.cache, other.cache)
    assert preheat.counters()["captures"] - before <= 3


def test_a_write_in_place_keeps_the_symbols():
    def program(x):
        y = x * 2
        y += x
        y *= x.shape[0]
        return y

    assert captures(program, [(4, 6), (5, 6), (6, 6), (9, 6), (1, 6)]) == 2


def test_a_host_call_between_keeps_the_symbols():
    def program(x):
        y = x * 2
        total = y.sum().item()
        return y.softmax(0) + (1 if total > 1e9 else 2)

    assert captures(program, [(4, 6), (5, 6), (6, 6), (9, 6), (3, 6)]) <= 5


def test_sizes_in_the_result_are_of_the_call():
    def program(x):
        return x * 2, x.shape, x.size(0) + 1, tuple(x.stride())

    compiled = preheat.compile(program, dynamic=True, options={"cache": False})
    for size in ((4, 6), (5, 7), (2, 3)):
        x = torch.randn(size)
        found, expected = compiled(x), program(x)
        assert found[1:] == expected[1:] and type(found[1]) is torch.Size


def test_an_op_without_a_rule_is_named_in_the_report():
    def program(x):
        return torch.ormqr(x[:, :1], x[0, :1], x).sum()

    compiled = preheat.compile(program, dynamic=True)
    with torch.no_grad():
        explanation = preheat.explain(compiled)(torch.randn(4, 6))
    assert explanation.pinned and all(name.startswith("aten.") for name in explanation.pinned)
    assert f"sizes pinned by {explanation.pinned[0]}" in str(explanation)
    assert captures(program, [(4, 6), (5, 6), (6, 6)], dynamic=True) == 3


def test_more_sizes_than_plans():
    compiled = preheat.compile(scaled, dynamic=True, options={"cache": False})
    with torch.no_grad():
        compiled(torch.randn(1000, 3))
        sized_of(compiled).templates.clear()
        for size in range(2, MOST_PLANS + 6):
            x = torch.randn(size, 3)
            for _ in range(3 * CALLS_BEFORE_PLAN):
                torch.testing.assert_close(compiled(x), scaled(x))
    runs = sized_of(compiled)._instances.values()
    assert sum(isinstance(made.run, Executable) for made in runs) == MOST_PLANS


def test_symbols_come_from_the_cache_on_disk(tmp_path, monkeypatch):
    monkeypatch.setenv("PREHEAT_CACHE_DIR", str(tmp_path))
    counts = []
    for _ in range(2):
        compiled, before = preheat.compile(scaled), preheat.counters()
        with torch.no_grad():
            for size in SIZES:
                x = torch.randn(size)
                torch.testing.assert_close(compiled(x), scaled(x))
        counts.append(preheat.counters()["captures"] - before["captures"])
    assert counts == [2, 0]


@pytest.mark.parametrize("mode, most", [
    (torch.no_grad, 2), (torch.inference_mode, 2), (torch.enable_grad, 2),
])
def test_every_grad_mode(mode, most):
    compiled = preheat.compile(scaled, options={"cache": False})
    before = preheat.counters()["captures"]
    with mode():
        for size in SIZES:
            x = torch.randn(size)
            torch.testing.assert_close(compiled(x), scaled(x))
    assert preheat.counters()["captures"] - before == most


def test_marks_in_training():
    weight = torch.randn(6, 6, requires_grad=True)
    compiled = preheat.compile(lambda x: (x @ weight).tanh(), options={"cache": False})
    before = preheat.counters()["captures"]
    for size in SIZES[:3] * 2:
        x = torch.randn(size)
        preheat.mark_dynamic(x, 0)
        (found,) = torch.autograd.grad(compiled(x).sum(), weight)
        (expected,) = torch.autograd.grad((x @ weight).tanh().sum(), weight)
        torch.testing.assert_close(found, expected)
    assert preheat.counters()["captures"] - before == 1


def test_a_marked_size_that_a_training_program_fixes_is_an_error():
    weight = torch.randn(6, requires_grad=True)

    def program(x):
        return sum((x[k] * weight for k in range(x.shape[0])), torch.zeros(6))

    compiled = preheat.compile(program, options={"cache": False})
    x = torch.randn(4, 6)
    preheat.mark_dynamic(x, 0)
    with pytest.raises(preheat.UserError, match=r"test_policy.py:\d+: .*program needs one value"):
        compiled(x)


def test_an_op_without_a_rule_fixes_a_marked_size_with_its_line():
    compiled = preheat.compile(lambda x: torch.ormqr(x[:, :1], x[0, :1], x), options={"cache": False})
    x = torch.randn(4, 6)
    preheat.mark_dynamic(x, 0)
    with torch.no_grad(), pytest.raises(preheat.UserError, match=r"test_policy.py:\d+: .*arg0.shape\[0\]"):
        compiled(x)


def test_static_marks_in_training():
    weight = torch.randn(6, 6, requires_grad=True)
    for mark, most in ((lambda x: preheat.mark_static(x, 0), 3), (lambda x: None, 2)):
        compiled = preheat.compile(lambda x: (x @ weight).tanh(), options={"cache": False})
        before = preheat.counters()["captures"]
        for size in (3, 4, 5):
            x = torch.randn(size, 6)
            mark(x)
            (found,) = torch.autograd.grad(compiled(x).sum(), weight)
            torch.testing.assert_close(found, torch.autograd.grad((x @ weight).tanh().sum(), weight)[0])
        assert preheat.counters()["captures"] - before == most


_MARKED_BY_TORCH = """
import torch, torch._dynamo, preheat
weight = torch.randn(6, 6, requires_grad=True)
marks = {
    "dynamic": lambda x: torch._dynamo.mark_dynamic(x, 0),
    "range": lambda x: torch._dynamo.mark_dynamic(x, 0, min=2, max=9),
    "maybe": lambda x: torch._dynamo.maybe_mark_dynamic(x, 0),
    "unbacked": lambda x: torch._dynamo.decorators.mark_unbacked(x, 0),
    "static": lambda x: torch._dynamo.mark_static(x, 0),
    "address": lambda x: torch._dynamo.mark_static_address(x),
}
for name, mark in marks.items():
    for grad in (False, True):
        compiled = preheat.compile(lambda x: (x @ weight).tanh(), options={"cache": False})
        before = preheat.counters()["captures"]
        with torch.set_grad_enabled(grad):
            for size in (4, 5, 9):
                x = torch.randn(size, 6)
                mark(x)
                assert torch.allclose(compiled(x), (x @ weight).tanh(), atol=1e-6)
        print(name, preheat.counters()["captures"] - before)
x = torch.randn(4, 6)
torch._dynamo.mark_dynamic(x, 0, min=5, max=9)
try:
    preheat.compile(lambda x: x * 2, options={"cache": False})(x)
except preheat.UserError as error:
    print("refused", "it is 4, not ge 5" in str(error))
"""


def test_what_torch_compiles_own_functions_mark():
    counts = [line.split() for line in printed("-c", _MARKED_BY_TORCH).splitlines()]
    expected = {"dynamic": "1", "range": "1", "maybe": "1", "unbacked": "1", "static": "3", "address": "2"}
    assert counts[:-1] == [[name, count] for name, count in expected.items() for _ in range(2)]
    assert counts[-1] == ["refused", "True"]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_attention_and_products_of_any_length(mode, is_transposed):
    def attended(q, k, v, weight):
        made = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return torch.nn.functional.linear(made, weight)

    compiled = preheat.compile(attended, options={"cache": False})
    before = preheat.counters()
    with mode():
        for batch, length in ((2, 5), (3, 7), (2, 9), (4, 12), (5, 3)):
            shape = (batch, length, 4, 8) if is_transposed else (batch, 4, length, 8)
            q, k, v = (torch.randn(shape) for _ in range(3))
            if is_transposed:
                q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            weight = torch.randn(6, 8)
            found, expected = (f(q, k, v, weight) for f in (compiled, attended))
            assert found.stride() == expected.stride()
            torch.testing.assert_close(found, expected)
    after = preheat.counters()
    assert after["captures"] - before["captures"] == 2
    assert after["fallbacks"] == before["fallbacks"]


def test_a_branch_that_sizes_alone_decide_is_one_graph():
    def masked(x):
        positions = torch.arange(x.shape[1])[None]
        steps = torch.diff(positions, prepend=positions[:, :1] - 1, dim=-1)
        if ((steps != 1).cumsum(-1)[:, -1] == 0).all():
            return x * 2
        return x

    compiled = preheat.compile(masked, options={"cache": False})
    before = preheat.counters()
    with torch.no_grad():
        for length in (5, 7, 9, 12, 5, 2):
            x = torch.randn(2, length)
            assert torch.equal(compiled(x), masked(x))
    after = preheat.counters()
    assert after["captures"] - before["captures"] == 2
    assert after["breaks"] == before["breaks"]


def test_a_branch_that_hangs_on_the_size_goes_both_ways():
    def either(x):
        return x * 2 if (torch.arange(x.shape[0]) > 6).any() else x + 1

    compiled = preheat.compile(either, options={"cache": False})
    before = preheat.counters()["breaks"]
    with torch.no_grad():
        for length in (5, 6, 9, 4, 12, 7, 8, 3):
            x = torch.randn(length)
            assert torch.equal(compiled(x), either(x)), length
    assert preheat.counters()["breaks"] == before


class Cache:
    """Holds what it was given, longer from call to call."""

    def __init__(self):
        self.kept = None


def test_a_cache_as_long_as_the_prompt_grows_from_its_first_use():
    def step(x, cache):
        cache.kept = x if cache.kept is None else torch.cat([cache.kept, x], 1)
        return cache.kept.sum(1)

    compiled, caches = preheat.compile(step, options={"cache": False}), (Cache(), Cache())
    before = preheat.counters()["captures"]
    with torch.no_grad():
        for number, length in enumerate((5, 1, 1, 1, 1, 1)):
            x = torch.full((2, length, 3), float(number))
            assert torch.equal(compiled(x, caches[0]), step(x, caches[1]))
    assert preheat.counters()["captures"] - before == 2


def test_c_that_refuses_symbols_after_it_has_written_to_memory_of_its_own():
    """The call is made again with plain sizes; before, the program saw C's refusal."""
    cell = torch.nn.LSTMCell(6, 4)
    assert captures(lambda x: cell(x)[0], [(4, 6), (5, 6), (6, 6), (5, 6), (1, 6)]) <= 4


def matrix(x):
    return x.mT @ x + torch.eye(x.shape[-1])


@pytest.mark.parametrize("function", [
    torch.linalg.inv, torch.linalg.cholesky, torch.linalg.det, lambda x: torch.linalg.slogdet(x)[1],
    lambda x: torch.linalg.lu_factor(x)[0], lambda x: torch.linalg.eigh(x)[0],
    lambda x: torch.linalg.solve(x, x[..., :2]), torch.linalg.svdvals, lambda x: torch.linalg.svd(x[..., 1:])[1],
    lambda x: torch.linalg.svd(x[..., 1:, :], full_matrices=False)[2].abs()])
def test_decompositions_of_batches_of_matrices(function):
    sizes = [(3, 7, 4), (5, 8, 4), (6, 9, 5), (2, 12, 8), (4, 9, 3), (7, 5, 2), (1, 6, 4), (2, 4, 1)]
    assert captures(lambda x: function(matrix(x)), sizes) <= 5
    assert captures(lambda x: function(matrix(x)) * 2, [size[1:] for size in sizes]) <= 5
