"""The smallest programs of faults that random ones have found: gradients and refusals are eager's."""

import pytest
import torch

import preheat
from tests.training.check import check
from tests.training.place import DEVICE


def outcomes(fn, use, count=4):
    """What `use(results, y, number)` gives in each of some calls of `fn(x, y)`; of an error its start."""
    found = []
    for number in range(count):
        torch.manual_seed(number)
        x, leaf = torch.randn(3, 3), torch.randn(3, 3, requires_grad=True)
        y = leaf * 1.5
        try:
            found.append(use(fn(x, y), y, leaf, number))
        except RuntimeError as error:
            found.append(str(error)[:60])
    return found


def agree(fn, use):
    eager = outcomes(fn, use)
    compiled = outcomes(preheat.compile(fn, options={"cache": False}), use)
    for expected, seen in zip(eager, compiled, strict=True):
        if isinstance(expected, str):
            assert seen == expected
        else:
            torch.testing.assert_close(seen, expected, rtol=1e-5, atol=1e-5)
    return eager


def first_backward(results, y, leaf, number):
    results[0].backward(torch.ones(3, 3))
    return leaf.grad


def test_a_write_to_an_input_takes_what_another_write_to_it_has_saved():
    def f(x, y):
        y.tanh_()
        y.add_(1)
        return (y,)

    assert all(row.startswith("one of the variables") for row in agree(f, first_backward))


def test_a_write_through_a_view_that_a_host_call_divides_from_its_base():
    def f(x, y):
        view = y.transpose(0, 1)
        view.retain_grad()
        view.tanh_()
        with torch.no_grad():
            view.mul_(0.5)
        return (view,)

    assert all(row.startswith("one of the variables") for row in agree(f, first_backward))


@pytest.mark.parametrize("create_graph", [None, 0, 1, 2, 3])
def test_a_saved_result_lies_in_a_view_of_memory_that_a_host_call_divides_from_a_write(create_graph):
    def f(x, y):
        view = (y * 1)[:]
        view.tanh_()
        print(end="")
        view.mul_(0.5)
        return (view,)

    def use(results, y, leaf, number):
        return torch.autograd.grad(
            results[0], leaf, torch.ones(3, 3), create_graph=number == create_graph)[0].detach()

    assert all(row.startswith("one of the variables") for row in agree(f, use))


def test_a_differentiable_backward_of_what_no_backward_has_been_through():
    def f(x, y):
        result = (y * 1).softmax(-1)
        print(end="")
        with torch.no_grad():
            result[0] = 0.2
        return (result,)

    def use(results, y, leaf, number):
        return torch.autograd.grad(
            results[0], leaf, torch.ones(3, 3), create_graph=number == 3)[0].detach()

    assert all(row.startswith("one of the variables") for row in agree(f, use))


def test_a_view_of_another_result_whose_memory_is_written_to_later():
    def f(x, y):
        outer = y.unsqueeze(0)[0]
        inner = outer.unsqueeze(0)[0]
        outer.add_(outer)
        return inner, outer

    def use(results, y, leaf, number):
        tangents = [torch.ones(3, 3), torch.full((3, 3), float(number))]
        return torch.autograd.grad(results, [results[1], y], tangents)

    agree(f, use)


def test_a_constant_that_forward_and_backward_share():
    def f(x, y):
        result = y * 0.5
        result.diagonal().fill_(0.3)
        result[:, 1] = 0.25
        return (result,)

    def use(results, y, leaf, number):
        results[0].backward(torch.ones(3, 3), retain_graph=True)
        results[0].backward(torch.ones(3, 3))
        return leaf.grad

    agree(f, use)


def test_a_gradient_that_is_its_tangent_is_learned():
    def f(x, y):
        return (y - x,)

    agree(f, first_backward)
    before = preheat.counters()["compiles"]
    outcomes(preheat.compile(f, options={"cache": False}), first_backward, count=6)
    assert preheat.counters()["compiles"] == before + 1


@pytest.mark.parametrize("seed", [18205, 40354, 2012541, 2017763, 3021536, 3022214, 2056, 2376, 2582, 2875, 3543, 3616, 5329, 5906, 6838, 7919, 8156])
def test_seeds(seed):
    check(seed)


def test_a_saved_result_that_nobody_holds_is_written_to():
    def f(x, y):
        v = torch.tanh(y)
        print(end="")
        v.mul_(2)
        return (v * 1,)

    assert all(row.startswith("one of the variables") for row in agree(f, first_backward))


def test_a_saved_result_with_other_memory_inside_is_written_to():
    def f(x, y):
        v = y * 1.5
        v.view(9)[2:5].mul_(2)
        result = v.clamp(-1, 1)
        print(end="")
        v.add_(1)
        return (result,)

    assert all(row.startswith("one of the variables") for row in agree(f, first_backward))


def test_a_saved_result_that_no_grad_has_changed_is_written_to():
    def f(x, y):
        v = y * 1.5
        with torch.no_grad():
            v[0] = 0.2
        result = v * y
        print(end="")
        v.add_(1)
        return (result,)

    assert all(row.startswith("one of the variables") for row in agree(f, first_backward))


@pytest.mark.parametrize("first", [0, 2])
def test_an_input_that_has_taken_what_is_saved_is_written_to(first):
    def f(x, y):
        y.tanh_()
        return (y * 1,)

    def use(results, y, leaf, number):
        if number >= first:
            y.add_(1)
        results[0].backward(torch.ones(3, 3))
        return leaf.grad

    assert [isinstance(row, str) for row in agree(f, use)] == [k >= first for k in range(4)]


@pytest.mark.parametrize("first", [0, 2])
def test_an_input_that_no_grad_has_changed_is_written_to(first):
    def f(x, y):
        with torch.no_grad():
            x.mul_(0.5)
        return (x * y,)

    def use(results, y, leaf, number):
        if number >= first:
            results[1].add_(1)
        results[0].backward(torch.ones(3, 3))
        return leaf.grad

    compiled, found = preheat.compile(f, options={"cache": False}), []
    for fn in (f, compiled):
        for number in range(4):
            x, leaf = torch.randn(3, 3), torch.randn(3, 3, requires_grad=True)
            results = (*fn(x, leaf * 1.5), x)
            try:
                use(results, None, leaf, number)
                found.append("")
            except RuntimeError as error:
                found.append(str(error)[:20])
    assert found[:4] == found[4:] and found[3] == "one of the variables"


def test_what_out_is_given_keeps_the_layout_of_its_memory():
    def f(x, y):
        quiet = y.detach() * 2
        torch.add(x.t(), 1, out=quiet)
        return y * 1, quiet

    def use(results, y, leaf, number):
        results[0].backward(torch.ones(3, 3))
        return (*map(torch.tensor, results[1].stride()), results[1])

    agree(f, use)


WRITES = {
    "zero": lambda view, x: view.zero_(),
    "fill": lambda view, x: view.fill_(2.0),
    "copy": lambda view, x: view.copy_(x.flatten()[:view.numel()].reshape(view.shape)),
    "item": lambda view, x: view.fill_(x.sum()),
    "scaled": lambda view, x: view.mul_(2),
}
VIEWS = {
    "view": lambda y: y.view(9), "turned": lambda y: y.t(), "twice": lambda y: y.view(9).view(3, 3)[None],
    "itself": lambda y: y, "part": lambda y: y[1:], "alias": lambda y: y[...],
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("write", WRITES)
def test_what_is_written_over_has_a_zero_gradient_with_eager_s_history(write, view):
    """Through a view there is one, through which only zeros flow."""
    def f(x, y):
        WRITES[write](VIEWS[view](y), x)
        return (y * x,)

    def use(results, y, leaf, number):
        tangent = torch.ones(3, 3, requires_grad=True)
        (first,) = torch.autograd.grad(results[0], leaf, tangent, create_graph=True)
        if not first.requires_grad:
            return first, torch.tensor(0)
        return first.detach(), torch.autograd.grad(first.sum(), tangent)[0]

    rows = agree(f, use)
    assert view == "itself" or all(second.shape == (3, 3) for _, second in rows)


def test_a_differentiable_backward_looks_at_what_its_first_one_had_saved():
    def f(x, y):
        v = torch.tanh(y)
        return v.sigmoid(), v

    def use(results, y, leaf, number):
        if number >= 2:
            results[1].detach().add_(1)
        return torch.autograd.grad(
            results[0], leaf, torch.ones(3, 3), create_graph=number != 1)[0].detach()

    assert [isinstance(row, str) for row in agree(f, use)] == [False, False, True, True]


def test_a_differentiable_backward_of_what_was_computed_from_an_input_before_a_write():
    """No formula has saved the input, but the part would run again from it: that is refused."""
    def f(x, y):
        v = torch.sigmoid(y * 1)
        print(end="")
        y.mul_(2)
        return (v,)

    def use(results, y, leaf, number):
        return torch.autograd.grad(results[0].sum(), leaf, create_graph=True)[0].detach()

    eager, compiled = outcomes(f, use), outcomes(preheat.compile(f, options={"cache": False}), use)
    for expected, found in zip(eager, compiled):
        assert isinstance(found, str) and found.startswith("one of the variables") or torch.equal(expected, found)
    assert isinstance(compiled[-1], str)


def test_a_view_of_a_result_that_is_used_after_a_write():
    def f(x, y):
        outer = y.reshape(3, 3)
        inner = outer.view(9)
        outer.mul_(0.3)
        return x * inner.view(3, 3), outer

    def use(results, y, leaf, number):
        tangents = torch.ones(3, 3), torch.full((3, 3), 10.0)
        return torch.cat(torch.autograd.grad(results, [results[1], y], tangents))

    agree(f, use)


@pytest.mark.parametrize("is_input", [False, True])
def test_a_tensor_into_a_part_of_which_a_write_has_put_what_is_saved(is_input):
    def f(x, y):
        t = y if is_input else y * 1
        t[0:2].tanh_()
        return (t * 1 if is_input else t,)

    def use(results, y, leaf, number):
        if number % 2 == 0:
            with torch.no_grad():
                (y if is_input else results[0]).mul_(2)
        results[0].backward(torch.ones(3, 3))
        return leaf.grad

    assert [isinstance(row, str) for row in agree(f, use)] == [True, False, True, False]


def test_a_copy_of_what_is_saved_may_be_written_to():
    def f(x, y):
        return (torch.slice_scatter(x, y.tanh()[0:2], 0, 0, 2),)

    def use(results, y, leaf, number):
        with torch.no_grad():
            results[0].mul_(2)
        results[0].backward(torch.ones(3, 3))
        return leaf.grad

    assert not any(isinstance(row, str) for row in agree(f, use))


def test_a_gradient_that_is_zero_without_memory():
    """Torch's formula of `sgn` gives zeros that have no memory, which kernels read all the same."""
    compiled = preheat.compile(torch.sgn, options={"cache": False})
    for seed in range(4):
        torch.manual_seed(seed)
        x = torch.randn(5, 5, device=DEVICE, requires_grad=True)
        (found,) = torch.autograd.grad(compiled(x * 1), x, torch.randn(5, 5, device=DEVICE))
        assert torch.equal(found, torch.zeros_like(x))


@pytest.mark.parametrize("how", ["item", "decorated", "writes"])
def test_a_part_that_begins_under_no_grad_and_ends_outside(how):
    w = torch.ones(3, requires_grad=True, device=DEVICE)
    state = {}

    @torch.no_grad()
    def looked_at(x):
        return x.norm().item()

    def fn(x):
        if how == "decorated":
            looked_at(x)
        else:
            with torch.no_grad():
                if how == "item":
                    x.norm().item()
                else:
                    state["seen"] = x.norm()
                    state["again"] = state["seen"] * 2
        return (x * w).sum()

    compiled = preheat.compile(fn, options={"cache": False})
    for number in range(5):
        (found,) = torch.autograd.grad(compiled(torch.full((3,), float(number), device=DEVICE)), w)
        assert found.tolist() == [number] * 3


def unasked_in_a_part(x, y):
    view = x[0:3]
    x.mul_(y)
    print(end="")
    view.add_(1)
    return (view * 1,)


def unasked_result(x, y):
    view = x[0:3]
    x.t()[0] += y[0]
    return (view,)


def unasked_input(x, y):
    with torch.no_grad():
        x.norm()
    x.add_(1)
    return (x * 1,)


def asked(x, y):
    view = x[0:3]
    x.mul_(y)
    view.sum()
    return (view,)


def made_later(x, y):
    x.mul_(y)
    return (x[0:3],)


@pytest.mark.parametrize("fn, is_refused", [
    (unasked_in_a_part, True), (unasked_result, True), (unasked_input, True), (asked, False), (made_later, False)])
def test_a_view_whose_memory_gets_a_history_by_a_later_write(fn, is_refused):
    """Torch refuses to write to it until something has used it."""
    def use(results, y, leaf, number):
        if fn is not unasked_in_a_part:
            results[0].mul_(2)
        results[0].backward(torch.ones(3, 3))
        return leaf.grad

    def called(x, y):
        if fn is unasked_input:
            below, x = x, x[0:3]
            below.mul_(y)
        return compiled(x, y)

    for compiled in (fn, preheat.compile(fn, options={"cache": False})):
        rows = outcomes(called, use)
        assert all(isinstance(row, str) and row.startswith("a leaf Variable") for row in rows) is is_refused
    if not is_refused:
        agree(fn, use)


QUIET = {
    "of a result": lambda x, y: (z := y * 1, lambda: z[:2]),
    "of an input": lambda x, y: (y * 1, lambda: y[:2]),
    "before a write": lambda x, y: (z := torch.zeros(3, 3), lambda: z[:2]),
    "of a view": lambda x, y: (z := y.view(9), lambda: z.view(3, 3)[:2]),
}


@pytest.mark.parametrize("how, has_break", [
    *((how, False) for how in QUIET), *((how, True) for how in QUIET if how != "before a write")])
def test_a_view_made_under_no_grad_refuses_to_be_written_to(how, has_break):
    def f(x, y):
        result, view_of = QUIET[how](x, y)
        with torch.no_grad():
            view = view_of()
        if has_break:
            print(end="")
        if how == "before a write":
            result.add_(y)
        return result, view

    def use(results, y, leaf, number):
        results[1].mul_(2)
        results[0].sum().backward()
        return leaf.grad

    assert all(isinstance(row, str) and row.startswith("A view was created in no_grad") for row in agree(f, use))


HOOKED = {
    "itself": lambda y, hook: (v := y[:2], v.register_hook(hook), v.mul_(2)),
    "its base": lambda y, hook: (v := y[:2], v.register_hook(hook), y.tanh_()),
    "a view of it": lambda y, hook: (v := y[:2], u := v[:1], u.register_hook(hook), v.mul_(3)),
    "all of it": lambda y, hook: (v := y.view(9), v.register_hook(hook), v.tanh_(), v.mul_(2)),
    "of the base": lambda y, hook: (v := y.view(9), y.register_hook(hook), v.mul_(2)),
}


@pytest.mark.parametrize("is_outside", [False, True])
@pytest.mark.parametrize("how", HOOKED)
def test_a_hook_on_a_view_that_is_written_to_sees_what_it_sees_in_eager(how, is_outside):
    seen = []

    def f(x, y):
        z = y * 1
        if is_outside:
            return z, z[:2]
        return z, HOOKED[how](z, lambda grad: seen.append(grad.clone()))[0]

    def use(results, y, leaf, number):
        seen.clear()
        base, view = results
        if is_outside:
            view = HOOKED[how](base, lambda grad: seen.append(grad.clone()))[0]
        (base.sum() * view.sum()).backward()
        return leaf.grad, *seen

    agree(f, use)


@pytest.mark.parametrize("is_outside", [False, True])
@pytest.mark.parametrize("change", [lambda v: v.fill_(0.3), lambda v: v.diagonal().mul_(2)], ids=["all", "part"])
def test_a_double_backward_through_a_result_with_another_history_is_refused(change, is_outside):
    """A second derivative of zero, silently: the result had the history of what was written to it."""
    def f(x, y):
        v = y * 1
        result = torch.sigmoid(v)
        if is_outside:
            return result, v
        print(end="")  # a part ends here
        change(v)
        return result, v

    compiled, found = preheat.compile(f, options={"cache": False}), []
    for fn in (f, compiled):
        torch.manual_seed(0)
        for _ in range(4):
            leaf = torch.randn(3, 3, requires_grad=True)
            result, v = fn(None, leaf)
            if is_outside:
                change(v)
            first, = torch.autograd.grad(result.sum(), leaf, create_graph=True)
            torch.testing.assert_close(first, result.detach() * (1 - result.detach()))
            try:
                found.append(torch.autograd.grad(first.square().sum(), leaf)[0])
            except RuntimeError as error:
                found.append(str(error)[:20])
    for expected, seen in zip(found[:4], found[4:]):
        if isinstance(seen, str):
            assert seen == "one of the variables"
        else:
            torch.testing.assert_close(seen, expected)


IN_PLACE = {
    "times a number": lambda y: (v := y[:2], v.mul_(2), v.add_(1)),
    "a sine, then a write": lambda y: (v := y[:2], v.sin_(), v.add_(1)),
    "by another part": lambda y: (v := y[:1], v.mul_(y[2:]), v.add_(1)),
}


@pytest.mark.parametrize("how", IN_PLACE)
def test_writes_through_views_of_what_needs_no_gradient_are_compiled(how):
    """In grad mode, as ever: nothing has been saved."""
    def f(x):
        y = x.clone()
        IN_PLACE[how](y)
        y[:2] *= 3
        return y @ y

    compiled, x = preheat.compile(f, options={"cache": False}), torch.randn(3, 3)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), f(x))
    assert "1 graph, 0 breaks" in str(preheat.explain(f)(x))


def test_a_part_that_is_multiplied_in_place_in_training_is_compiled():
    def f(x, y):
        v = y * 1
        v[:2] *= 3
        return (v.sin(),)

    agree(f, first_backward)
    assert "1 graph, 0 breaks" in str(preheat.explain(f)(None, torch.randn(3, 3, requires_grad=True)))
