"""Buckets: padded runs give the results of the unpadded ones, or are refused."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import preheat
from preheat.base.events import subscribe
from preheat.bridge import padding
from preheat.bridge.tensors import is_dense


@pytest.fixture(autouse=True)
def strict(monkeypatch):
    monkeypatch.setenv("PREHEAT_STRICT", "1")


class Reader(nn.Module):
    """Attention over a sequence with a mask; a mean over what is not masked."""

    def __init__(self):
        super().__init__()
        self.embed, self.project = nn.Embedding(20, 8), nn.Linear(8, 8)

    def forward(self, ids, mask, is_masked=True):
        x = self.embed(ids)
        hidden = ~mask.bool() if is_masked else torch.zeros_like(mask).bool()
        scores = (x @ x.transpose(1, 2)).masked_fill(hidden[:, None], float("-inf"))
        x = self.project(scores.softmax(-1) @ x)
        mean = (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return {"states": x, "mean": mean}


def inputs(batch, length):
    return torch.randint(0, 20, (batch, length)), torch.ones(batch, length, dtype=torch.long)


def test_results_are_those_of_the_unpadded_run():
    torch.manual_seed(0)
    model = Reader().eval()
    bucketed = preheat.bucketed(
        model, lengths=[16, 8, 32], dims={"ids": 1, "mask": 1}, fill={"mask": 0},
        options={"cache": False})
    before = preheat.counters()["captures"]
    with torch.no_grad():
        for length in (5, 8, 7, 3, 16, 9, 12, 31, 20, 6, 1):
            ids, mask = inputs(2, length)
            found, expected = bucketed(ids, mask=mask), model(ids, mask)
            assert found.keys() == expected.keys()
            for name, value in expected.items():
                torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5)
    assert preheat.counters()["captures"] - before == 3  # one for each bucket


def test_padding_that_reaches_the_results_is_refused():
    model = Reader().eval()
    bucketed = preheat.bucketed(
        lambda ids, mask: model(ids, mask, is_masked=False), lengths=[8],
        dims={"ids": 1, "mask": 1}, fill={"mask": 0}, options={"cache": False})
    with torch.no_grad(), pytest.raises(preheat.UserError, match="padding reaches the results"):
        bucketed(*inputs(2, 5))


def test_a_scan_backwards_is_refused():
    bucketed = preheat.bucketed(
        lambda x: x.flip(0).cumsum(0).flip(0), lengths=[8], dims={"x": 0}, options={"cache": False})
    with torch.no_grad(), pytest.raises(preheat.UserError, match="reaches the results"):
        bucketed(torch.randn(5))


def test_elementwise_programs_need_no_mask():
    bucketed = preheat.bucketed(
        lambda x: (F.gelu(x), x.sum(-1)), lengths=[4, 8], dims={"x": 0}, options={"cache": False})
    with torch.no_grad():
        for length in range(1, 9):
            x = torch.randn(length, 3)
            first, second = bucketed(x)
            torch.testing.assert_close(first, F.gelu(x))
            torch.testing.assert_close(second, x.sum(-1))


def test_beyond_the_last_bucket_sizes_are_symbols_and_reported():
    bucketed = preheat.bucketed(
        lambda x: x * 2, lengths=[4], dims={"x": 0}, options={"cache": False})
    reported = []
    unsubscribe = subscribe(lambda event: reported.append(event.data["why"]), {"fallback"})
    before = preheat.counters()["captures"]
    try:
        with torch.no_grad():
            for length in (5, 9, 17, 33):
                assert torch.equal(bucketed(torch.ones(length)), torch.full((length,), 2.0))
    finally:
        unsubscribe()
    assert len(reported) == 4 and "length 33 is beyond the last bucket, 4" in reported[-1]
    assert preheat.counters()["captures"] - before == 2


def test_what_is_asked_for_is_checked():
    with pytest.raises(preheat.UserError, match="positive integers"):
        preheat.bucketed(lambda x: x, lengths=[], dims={"x": 0})
    with pytest.raises(preheat.UserError, match="no argument 'ids'"):
        preheat.bucketed(lambda x: x, lengths=[4], dims={"ids": 0})
    bucketed = preheat.bucketed(
        lambda x, y: x, lengths=[4], dims={"x": 0, "y": 0}, options={"cache": False})
    with pytest.raises(preheat.UserError, match="need one length"):
        bucketed(torch.ones(2), torch.ones(3))


SEQ = {"lengths": [8, 16], "dims": {"ids": 1, "mask": 1}, "fill": {"mask": 0}}


def counted(call):
    before = preheat.counters()
    call()
    after = preheat.counters()
    return {name: after[name] - before[name] for name in ("captures", "compiles", "fallbacks", "breaks")}


def test_the_option_is_the_same_for_functions_and_modules():
    torch.manual_seed(0)
    model = Reader().eval()
    compiled = preheat.compile(model, options={"cache": False, "buckets": {"seq": SEQ}})
    assert isinstance(compiled, Reader) and compiled.state_dict().keys() == model.state_dict().keys()
    function = preheat.compile(
        lambda ids, mask: model(ids, mask), options={"cache": False, "buckets": {"seq": SEQ}})
    with torch.no_grad():
        for length in (5, 8, 13, 16, 2):
            ids, mask = inputs(2, length)
            expected = model(ids, mask)
            for call in (compiled, function):
                for name, value in call(ids, mask).items():
                    torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-5)


def test_every_size_in_range_after_warmup_and_seal():
    torch.manual_seed(0)
    model = Reader().eval()
    compiled = preheat.compile(model, options={"cache": False, "buckets": {"seq": SEQ}})
    with torch.no_grad():
        preheat.warmup(compiled, [inputs(2, 5)])
        preheat.seal(compiled)

        def requests():
            for length in range(1, 17):
                ids, mask = inputs(2, length)
                for name, value in model(ids, mask).items():
                    torch.testing.assert_close(compiled(ids, mask)[name], value, rtol=1e-4, atol=1e-5)

        assert counted(requests) == {"captures": 0, "compiles": 0, "fallbacks": 0, "breaks": 0}


def test_ranges_of_sizes_after_warmup_and_seal():
    model = Reader().eval()
    compiled = preheat.compile(model, options={"cache": False})
    ranges = {"ids": {0: range(1, 4), 1: range(1, 21)}, "mask": {0: range(1, 4), 1: range(1, 21)}}
    with torch.no_grad():
        preheat.warmup(compiled, [inputs(2, 5), inputs(2, 9)], ranges=ranges)
        preheat.seal(compiled)

        def requests():
            for batch in range(1, 4):
                for length in range(1, 21):
                    ids, mask = inputs(batch, length)
                    for name, value in model(ids, mask).items():
                        torch.testing.assert_close(compiled(ids, mask)[name], value, rtol=1e-4, atol=1e-5)

        assert counted(requests) == {"captures": 0, "compiles": 0, "fallbacks": 0, "breaks": 0}
    with pytest.raises(preheat.UserError, match="is sealed"):
        preheat.warmup(compiled, [inputs(2, 5)])
    another = preheat.compile(model, options={"cache": False})
    with pytest.raises(preheat.UserError, match="no argument 'idx'"):
        preheat.warmup(another, [inputs(2, 5)], ranges={"idx": {0: range(3)}})
    with pytest.raises(preheat.UserError, match="a list of inputs"):
        preheat.warmup(another, torch.ones(3))


def test_what_buckets_cannot_be():
    with pytest.raises(preheat.UserError, match="positive integers"):
        preheat.bucketed(torch.relu, lengths=8, dims={"input": 0})
    function = preheat.bucketed(lambda x: x * 2, lengths=[8], dims={"x": 5})
    with pytest.raises(preheat.UserError, match="no axis 5 of x"):
        function(torch.ones(3))


def test_two_names_pad_two_axes():
    torch.manual_seed(0)
    model = Reader().eval()
    buckets = {
        "seq": SEQ, "batch": {"lengths": [2, 4], "dims": {"ids": 0, "mask": 0}, "fill": {"mask": 1}}}
    compiled = preheat.compile(model, options={"cache": False, "buckets": {**buckets, "seq": {
        **SEQ, "fill": {"mask": 0}}}})
    before = preheat.counters()["captures"]
    with torch.no_grad():
        for batch in range(1, 5):
            for length in (3, 8, 11, 16):
                ids, mask = inputs(batch, length)
                for name, value in model(ids, mask).items():
                    torch.testing.assert_close(compiled(ids, mask)[name], value, rtol=1e-4, atol=1e-5)
    assert preheat.counters()["captures"] - before == 4


def test_gradients_of_padded_runs_are_those_of_the_unpadded_ones():
    torch.manual_seed(0)
    model = Reader().train()
    compiled = preheat.compile(model, options={"cache": False, "buckets": {"seq": SEQ}})
    before = preheat.counters()["captures"]
    for length in (5, 7, 8, 12, 6, 16, 3, 5):
        ids, mask = inputs(2, length)
        rows = []
        for call in (compiled, model):
            model.zero_grad()
            found = call(ids, mask)
            (found["states"].square().mean() + found["mean"].sum()).backward()
            rows.append([p.grad.clone() for p in model.parameters()])
        for found, expected in zip(*rows, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert preheat.counters()["captures"] - before == 2


def test_padding_that_reaches_the_gradients_alone_is_refused():
    class Leak(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.length = x.shape[0]
            return x * 1.0

        @staticmethod
        def backward(ctx, tangent):
            return tangent * ctx.length

    w = torch.randn(4, requires_grad=True)
    compiled = preheat.compile(lambda x: Leak.apply(x * w), options={
        "cache": False, "buckets": {"rows": {"lengths": [8], "dims": {"x": 0}}}})
    with pytest.raises(preheat.UserError, match="padding reaches the gradients: at rows 5 of 8"):
        compiled(torch.randn(5, 4))
    with torch.no_grad():
        assert compiled(torch.randn(5, 4)).shape == (5, 4)


def test_the_check_leaves_no_trace_and_random_programs_are_refused():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            return x * 2

    model = Counting()
    compiled = preheat.compile(model, options={
        "cache": False, "buckets": {"rows": {"lengths": [8], "dims": {"x": 0}}}})
    for count in range(1, 4):
        compiled(torch.randn(5, 4))
        assert model.calls == count
    compiled = preheat.compile(lambda x: F.dropout(x, 0.5), options={
        "cache": False, "buckets": {"rows": {"lengths": [8], "dims": {"x": 0}}}})
    state = torch.get_rng_state()
    with pytest.raises(preheat.UserError, match="draws random numbers"):
        compiled(torch.randn(5, 4))
    torch.set_rng_state(state)


def test_results_whose_length_is_mixed_with_others_are_refused():
    compiled = preheat.compile(lambda x: x.reshape(-1), options={
        "cache": False, "buckets": {"rows": {"lengths": [8], "dims": {"x": 0}}}})
    with torch.no_grad(), pytest.raises(preheat.UserError, match="cannot be cut back"):
        compiled(torch.randn(5, 4))


@pytest.mark.parametrize("wrong, why", [
    ({"seq": [8, 16]}, "has to say which arguments"),
    ({"seq": {"lengths": [8], "dims": {}}}, "dims must be"),
    ({"seq": {"lengths": [0], "dims": {"x": 0}}}, "positive integers"),
    ({"seq": {"lengths": [8], "dims": {"x": 0}, "fills": {}}}, "did you mean 'fill'"),
    ({"seq": {"lengths": [8], "dims": {"x": 0}, "fill": {"y": 0}}}, "no axis that is padded"),
    ({"seq": {"lengths": [8], "dims": {"x": 0}, "fill": {"x": "0"}}}, "must be a number"),
    ({"seq": {"lengths": [8], "dims": {"z": 0}}}, "no argument 'z'"),
])
def test_the_option_is_checked(wrong, why):
    with pytest.raises(preheat.UserError, match=why):
        preheat.compile(lambda x, y: x, options={"buckets": wrong})


def test_explain_names_sizes_beyond_the_last_bucket():
    compiled = preheat.compile(lambda x: x * 2, options={
        "cache": False, "buckets": {"rows": {"lengths": [4], "dims": {"x": 0}}}})
    with torch.no_grad():
        explanation = preheat.explain(compiled)(torch.ones(9))
    assert torch.equal(explanation.result, torch.full((9,), 2.0))
    assert "rows 9 is beyond the last bucket, 4" in str(explanation)


def test_the_batch_is_a_symbol_within_a_bucket():
    model = Reader().eval()
    bucketed = preheat.bucketed(
        model, lengths=[8, 16], dims={"ids": 1, "mask": 1}, fill={"mask": 0}, options={"cache": False})
    before = preheat.counters()
    with torch.no_grad():
        for number, (batch, length) in enumerate([
                (2, 5), (3, 8), (4, 7), (2, 12), (5, 16), (6, 11), (7, 3), (9, 14), (11, 8), (2, 6)]):
            torch.manual_seed(number)
            ids, mask = inputs(batch, length)
            found, expected = bucketed(ids, mask), model(ids, mask)
            for name, value in expected.items():
                torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5)
    after = preheat.counters()
    assert after["captures"] - before["captures"] == 4  # two for each bucket
    assert after["fallbacks"] == before["fallbacks"]


def test_dropout_draws_nothing_in_evaluation_and_is_refused_in_training():
    class Dropping(nn.Module):
        def forward(self, x):
            return F.dropout(x, 0.5, self.training) * 2

    model = Dropping()
    options = {"lengths": [8], "dims": {"x": 0}, "options": {"cache": False}}
    x = torch.randn(5, 3)
    with torch.no_grad():
        torch.testing.assert_close(preheat.bucketed(model.eval(), **options)(x), x * 2)
        torch.manual_seed(0)
        before = torch.get_rng_state()
        with pytest.raises(preheat.UserError, match=r"padding would draw some.*model.eval\(\)"):
            preheat.bucketed(model.train(), **options)(x)
        assert torch.equal(torch.get_rng_state(), before)


def test_each_way_through_the_program_is_checked():
    """Another way through the same bucket: by an argument, by a mode, by another batch size."""
    class Net(torch.nn.Module):
        def forward(self, x, mean=False):
            if mean or not self.training or x.shape[0] == 3:
                return x.mean(1)
            return x.sum(1)

    ways = (
        lambda net, call: call(torch.ones(2, 3), mean=True),
        lambda net, call: (net.eval(), call(torch.ones(2, 3))),
        lambda net, call: call(torch.ones(3, 3)),
    )
    for way in ways:
        net = Net().train()
        compiled = preheat.bucketed(net, lengths=[4], dims={"x": 1}, fill={"x": 0})
        for size in (3, 2, 1):
            assert compiled(torch.ones(2, size)).tolist() == [size] * 2
        with pytest.raises(preheat.UserError, match="reaches the results"):
            way(net, compiled)


def rows(function, **rest):
    """`function` with the first axis of x padded to 4 or 8."""
    return preheat.bucketed(
        function, lengths=[4, 8], dims={"x": 0}, options={"cache": False}, **rest)


def test_what_has_no_length_runs_as_it_is():
    for make in (lambda *sizes: torch.randn(sizes), lambda *sizes: torch.ones(sizes, dtype=torch.long)):
        bucketed = rows(lambda x: (x * 2, x.sum(1)))
        for sizes in ((0, 3), (2, 0), (0, 0), (3, 3), (0, 3)):
            x = make(*sizes)
            for found, expected in zip(bucketed(x), (x * 2, x.sum(1)), strict=True):
                assert found.shape == expected.shape and torch.equal(found, expected)
    explanation = preheat.explain(rows(lambda x: x * 2))(torch.ones(0))
    assert "length 0 is nothing that could be padded" in str(explanation)


@pytest.mark.parametrize("result, words", [
    (lambda x: (x, x.shape[0]), r"the result\[1\] at length 3 and at 4 is 3 and 4: .* take their sizes"),
    (lambda x: {"a": [x, x.shape]}, r"the result\['a'\]\[1\] at length 3 and at 4 is torch.Size"),
    (lambda x: [x] * x.shape[0], r"the result at length 3 and at 4 has other parts \(3 and 4\)"),
    (lambda x: {str(x.shape[0]): x}, "has other parts"),
    (lambda x: (x, range(3)), r"the result\[1\] is a range, which cannot be cut back"),
    (lambda x: x if len(x) == 4 else None, r"is a NoneType and \[4, 2\]"),
    (lambda x: x if len(x) == 4 else x[0], r"is \[2\] and \[4, 2\]: it cannot be cut"),
])
def test_results_that_cannot_be_cut_are_named(result, words):
    bucketed = rows(result)
    for _ in range(2):
        with pytest.raises(preheat.UserError, match=words):
            bucketed(torch.ones(3, 2))


def test_plain_parts_of_results_that_do_not_change_are_kept():
    bucketed = rows(lambda x: (x * 2, 3, "a", None, float("nan"), x.dtype))
    found = bucketed(torch.ones(3))
    assert found[1:4] == (3, "a", None) and found[4] != found[4] and found[5] is torch.float32


@pytest.mark.parametrize("function", [
    lambda x: x * 2, lambda x: x.transpose(1, 2) * 2, lambda x: (x * 2).transpose(0, 1),
    lambda x: (x * 2)[..., :2], lambda x: (x[..., :1] + 0).expand(-1, -1, 3), lambda x: (x * 2).unsqueeze(1),
    lambda x: x.sum(0), lambda x: x.sum(2).T,
])
def test_results_have_the_strides_of_unpadded_ones(function):
    bucketed = preheat.bucketed(
        lambda x: function(x), lengths=[4, 8], dims={"x": 1}, options={"cache": False})
    for length in (3, 4, 5, 2, 7):
        x = torch.randn(2, length, 3)
        found, expected = bucketed(x), function(x)
        torch.testing.assert_close(found, expected)
        assert found.is_contiguous() == expected.is_contiguous()
        if is_dense(expected):
            assert found.stride() == expected.stride()


@pytest.mark.parametrize("fill, x", [
    (0.5, torch.ones(3, dtype=torch.long)), (300, torch.ones(3, dtype=torch.uint8)),
    (2, torch.ones(3, dtype=torch.bool)), (1j, torch.ones(3)), (float("nan"), torch.ones(3, dtype=torch.int)),
    (1e9, torch.ones(3, dtype=torch.float16)),
])
def test_a_fill_value_is_one_of_the_dtype(fill, x):
    with pytest.raises(preheat.UserError, match="the fill value .* is none of"):
        rows(lambda x: x & x if not x.is_floating_point() else x * 2, fill={"x": fill})(x)
    assert torch.equal(rows(lambda x: x.clone(), fill={"x": True})(x), x)


def test_writes_to_what_is_padded_are_refused_and_others_happen_once():
    x, total = torch.ones(3), torch.zeros(())

    def writes(x):
        x += 1
        return x * 2

    with pytest.raises(preheat.UserError, match="writes to its argument 'x', which is padded"):
        rows(writes)(x)
    assert x.tolist() == [1.0] * 3

    def counts(x, total):
        total += 1
        return x * 2

    bucketed = rows(counts)
    for number in range(1, 4):
        assert bucketed(x, total).tolist() == [2.0] * 3 and total == number


def test_a_call_that_does_not_fit_raises_the_programs_own_error():
    def program(x, y=1):
        return x * y

    for args, kwargs in (((), {}), ((torch.ones(3), 2, 3), {}), ((torch.ones(3),), {"z": 1})):
        with pytest.raises(TypeError) as expected:
            program(*args, **kwargs)
        with pytest.raises(TypeError) as found:
            rows(program)(*args, **kwargs)
        assert str(found.value) == str(expected.value)
    with pytest.raises(preheat.UserError, match="none of the arguments x, which are padded, is a tensor"):
        rows(program)(3)


def test_an_error_of_the_padded_run_says_that_it_was_padded():
    table = nn.Embedding(3, 2)
    bucketed = rows(lambda x: x + table(torch.arange(len(x))))
    with pytest.raises(IndexError) as error:
        bucketed(torch.ones(3, 2))
    assert "arguments that buckets have padded to (4,)" in error.value.__notes__[0]


def test_how_often_the_program_runs_for_the_first_call_of_a_bucket():
    calls = []

    def program(x):
        calls.append(len(x))
        return x * 2

    bucketed = rows(program)
    bucketed(torch.ones(2))
    # As it is and padded twice; the same at the shortest and the longest; and the call itself.
    assert calls == [2, 4, 4, 1, 4, 4, 3, 4, 4, 4]
    bucketed(torch.ones(3))
    assert calls[10:] == [4]


@pytest.mark.parametrize("program, fill", [
    (lambda x: x[:3] * 2, None), (lambda x: x.topk(min(2, len(x)), 0).values, -math.inf),
    (lambda x: x.sort(0).values[:2], math.inf), (lambda x: F.pad(x, (0, max(0, 3 - len(x)))), None),
    (lambda x: x * 2 if len(x) > 1 else x * 3, None)])
def test_what_hangs_on_the_length_is_refused_where_it_does(program, fill):
    """Longer calls of the same bucket are right, and came first."""
    bucketed = rows(program, fill=None if fill is None else {"x": fill})
    x = torch.randn(3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(bucketed(x), program(x))
    with pytest.raises(preheat.UserError):
        bucketed(x[:1])
    assert torch.equal(bucketed(x), program(x))


def test_an_error_for_short_inputs_is_the_programs_own():
    def program(x):
        if len(x) < 2:
            raise ValueError("short")
        return x * 2

    bucketed = rows(program)
    for _ in range(2):
        assert torch.equal(bucketed(torch.ones(3)), torch.full((3,), 2.0))
        with pytest.raises(ValueError, match="short"):
            bucketed(torch.ones(1))


@pytest.mark.parametrize("program, fill, x", [
    (lambda x: x.amax(0), 0.0, torch.tensor([1.0, 2.0, 3.0])), (lambda x: x.argmin(0), 0.0, -torch.arange(1.0, 4.0)),
    (lambda x: (x < 1).any(0), 0.5, torch.tensor([0.5, 0.25, 2.0]))])
def test_a_fill_value_that_hides_for_some_elements_alone_is_refused(program, fill, x):
    with pytest.raises(preheat.UserError, match="the fill value, they differ .* Give fill values that change nothing"):
        rows(program, fill={"x": fill})(x)


@pytest.mark.parametrize("program, fill", [
    (lambda x: x.amax(0), -math.inf), (lambda x: x.amax(0), -1e4), (lambda x: x.sum(0), 0.0), (lambda x: x.prod(0), 1.0),
    (lambda x: x.clamp(min=0).amax(0), 0.0), (lambda x: x.sqrt().sum(0), 0.0)])
def test_a_fill_value_that_hides_whatever_the_elements_are_is_taken(program, fill):
    bucketed = rows(program, fill={"x": fill})
    for x in (torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.5]), torch.tensor([0.25, 4.0])):
        assert torch.equal(bucketed(x), program(x))


def test_an_axis_that_was_as_long_as_its_bucket_at_first_is_cut_later():
    buckets = {"batch": {"lengths": [4], "dims": {"x": 0}}, "time": {"lengths": [8], "dims": {"x": 1}}}
    bucketed = preheat.compile(lambda x: x * 2, options={"buckets": buckets, "cache": False})
    for sizes in ((4, 5), (3, 5), (3, 8), (2, 7)):
        assert torch.equal(bucketed(torch.ones(sizes)), torch.full(sizes, 2.0))
