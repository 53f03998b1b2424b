"""Arguments that are views of larger tensors: their strides change with the sizes, and two captures serve all of them."""

import pytest
import torch
import torch.nn.functional as F

import preheat

SIZES = (5, 8, 3, 7, 9, 12, 2, 20, 5)
VIEWS = {
    "all but the last": lambda r, n: r(4, n + 1, 6)[:, :-1],
    "all but the first": lambda r, n: r(4, n + 1, 6)[:, 1:],
    "last of each": lambda r, n: r(3, n, 4, 6)[:, -1],
    "every second": lambda r, n: r(4, 2 * n, 6)[:, ::2],
    "crop": lambda r, n: r(4, n + 2, n + 3)[:, 1:-1, 1:-2],
    "one of three": lambda r, n: r(4, n, 3, 6).unbind(2)[1],
    "heads": lambda r, n: r(n, 4, 3, 6).permute(2, 1, 0, 3)[1],
    "repeated": lambda r, n: r(1, n + 1, 6)[:, 1:].expand(4, n, 6),
    "turned crop": lambda r, n: r(4, 6, n + 2)[..., 1:-1].transpose(1, 2),
}
WEIGHT = torch.randn(6, 2, generator=torch.Generator().manual_seed(1))


def written(x):
    x.mul_(2)[:, 0].add_(1)
    return x.sum(1)


PROGRAMS = {
    "chain": lambda x: (x * 2 + 1).tanh(), "softmax": lambda x: x.softmax(-1), "sums": lambda x: (x.sum(1), x.mean(-1)),
    "reshape": lambda x: x.reshape(-1, x.shape[-1]) * 2, "contiguous": lambda x: x.contiguous() + 1, "clone": lambda x: x.clone(),
    "views": lambda x: x[1:, :, ::2].transpose(0, 1) + 1, "cat": lambda x: torch.cat([x, x.flip(1)], 1),
    "product": lambda x: x.transpose(1, 2) @ x, "like": lambda x: torch.zeros_like(x) + x, "written": written,
    "returned": lambda x: (x[0], x.amax()), "unfold": lambda x: x.unfold(1, 2, 1).mean(-1),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x),
}


def normal(generator):
    return lambda *sizes: torch.randn(sizes, generator=generator)


def same(found, expected):
    for one, other in zip(found, expected) if isinstance(expected, tuple) else [(found, expected)]:
        assert one.stride() == other.stride() and one.dtype == other.dtype
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("view, program", [
    (view, program) for view in VIEWS for program in PROGRAMS
    if (view, program) != ("crop", "attention")])  # the width of a head is a number
def test_two_captures_serve_all_sizes(view, program):
    f = PROGRAMS[program]
    compiled = preheat.compile(f, options={"cache": False})
    before, captures = preheat.counters()["captures"], []
    for n in SIZES:
        x = VIEWS[view](normal(torch.Generator().manual_seed(n)), n)
        y = VIEWS[view](normal(torch.Generator().manual_seed(n)), n)
        if program == "written" and view == "repeated":
            with pytest.raises(RuntimeError) as expected:
                f(y)
            with pytest.raises(RuntimeError) as found:
                compiled(x)
            assert str(found.value) == str(expected.value)
            continue
        expected = f(y)
        same(compiled(x), expected)
        assert torch.equal(x, y)
        captures.append(preheat.counters()["captures"] - before)
    if captures:
        assert captures[1] == captures[3], "the size 2 is where rules may ask"
        assert captures[-1] <= 3


@pytest.mark.parametrize("view", [name for name in VIEWS if name != "repeated"])
def test_two_captures_serve_all_sizes_in_training(view):
    def loss(x):
        return F.layer_norm(x @ x.transpose(1, 2), (x.shape[1],)).tanh().sum(-1)

    compiled = preheat.compile(loss, options={"cache": False})
    before = preheat.counters()["captures"]
    for n in SIZES:
        grads = []
        for f in (loss, compiled):
            base = []
            made = normal(torch.Generator().manual_seed(n))
            x = VIEWS[view](lambda *sizes: base.append(made(*sizes).requires_grad_()) or base[0], n)
            f(x).square().sum().backward()
            grads.append(base[0].grad)
        torch.testing.assert_close(*grads)
    assert preheat.counters()["captures"] - before <= 3


def test_labels_and_logits_of_a_language_model():
    def loss(logits, labels):
        return F.cross_entropy(logits.reshape(-1, 7), labels.reshape(-1))

    compiled = preheat.compile(loss, options={"cache": False})
    before = preheat.counters()["captures"]
    for n in SIZES:
        logits, labels = torch.randn(4, n, 7), torch.randint(0, 7, (4, n))
        torch.testing.assert_close(compiled(logits[:, :-1], labels[:, 1:]), loss(logits[:, :-1], labels[:, 1:]))
    assert preheat.counters()["captures"] - before <= 3


def test_elements_that_lie_on_each_other_are_no_other_strides():
    """What is read serves them, what is written is refused as in eager."""
    for f in (lambda x: x * 2, lambda x: x.add_(1)):
        compiled = preheat.compile(f, options={"cache": False})
        for n in SIZES:
            assert torch.equal(compiled(torch.ones(4, n + 1)[:, :-1]), f(torch.ones(4, n + 1)[:, :-1]))
        for step in (1, 2):
            def overlapping():
                return torch.arange(20.0).as_strided((4, 5), (step, 1))

            try:
                expected = f(overlapping())
            except RuntimeError as error:
                with pytest.raises(RuntimeError) as found:
                    compiled(overlapping())
                assert str(found.value) == str(error)
            else:
                assert torch.equal(compiled(overlapping()), expected)
