"""In-place ops, views and shared memory: the lowered graph does to its inputs what eager did."""

from dataclasses import replace

import pytest
import torch

import preheat
import torch.nn.functional as F

from preheat.base.errors import Unsupported
from preheat.bridge import interpret
from preheat.ir.graph import Builder, Graph, Input, Op, Ref
from preheat.ir.types import tensor
from preheat.transform.functionalize import functionalize
from preheat.transform.pipeline import lower
from transform.check import check, copies
from transform.record import record


def x_(*sizes, seed=0):
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed))


def _loop(x):
    for i in range(x.shape[0]):
        x[i] += i
    return x.sum()


def _chain(x):
    y = x.t()
    z = y[1:3]
    w = z.unsqueeze(0)
    w.mul_(3)
    return x, y, z + 1, w


def _read_before_write(x):
    old = x[0] * 2
    x[0].zero_()
    return old, x[0] + 1


def _two_views(x):
    a, b = x[0], x[0]
    a.add_(1)
    b.mul_(2)
    return a + b


def _fresh_views(x):
    h = x * 2
    h[:, 1] = 7
    first, second = h.chunk(2)
    second.neg_()
    return first, second


def _returned_twice(x):
    y = x + 1
    return y, y, y[0], y.t()


def _swap(x):
    t = x[0].clone()
    x[0] = x[1]
    x[1] = t


def _overlapping_copy(x):
    x[1:] = x[:-1].clone()
    return x


def _own_rows(x):
    x[[0, 0, 2]] += 1
    return x


def _views_of_views(x):
    v = x.view(2, 2, 6).transpose(0, 1)
    v[0].copy_(torch.ones(2, 6))
    v.reshape(4, 6)[0] = 5  # a copy: x keeps its values
    return v


def _int_bits(x):
    bits = x.view(torch.int32)
    before = bits + 0
    x[1:3] = 0
    return before, bits + 0


INPLACE = {
    "add_": lambda x: x.add_(1), "mul_ view": lambda x: x[1].mul_(2), "loop": _loop, "chain": _chain,
    "read before write": _read_before_write, "two views": _two_views, "fresh views": _fresh_views, "swap": _swap,
    "returned twice": _returned_twice, "overlapping copy": _overlapping_copy, "own rows": _own_rows,
    "views of views": _views_of_views, "int bits": _int_bits, "input back": lambda x: x,
    "view back": lambda x: (x[1], x.t(), x.view(-1)[3:7]), "slice step": lambda x: x[::2, 1::3].zero_(),
    "relu_": lambda x: F.relu(x * 2, inplace=True), "clamp_": lambda x: x.clamp_(0, 1) + 1, "fill_": lambda x: x.fill_(2),
    "copy_": lambda x: x.copy_(x.flip(0)), "copy_ half": lambda x: x.copy_(x.half()), "masked_fill_": lambda x: x.masked_fill_(x > 0, -1),
    "setitem mask": lambda x: x.masked_fill_(x.abs() < 1, 0), "diagonal": lambda x: x.diagonal().add_(1),
    "index_put_": lambda x: x.index_put_((torch.tensor([1, 1]),), x[:2].clone(), accumulate=True), "index_add_": lambda x: x.index_add_(0, torch.tensor([0, 0]), x[:2].clone()),
    "index_copy_": lambda x: x.index_copy_(0, torch.tensor([2]), x[:1].clone()), "scatter_": lambda x: x.scatter_(1, torch.zeros(4, 1, dtype=torch.int64), 3.0),
    "eq_": lambda x: x.eq_(0), "lt_ two": lambda x: x.lt_(x.t().contiguous().view(4, 6)), "add_ double": lambda x: x.add_(x.double()),
    "div_": lambda x: x.div_(3), "unbind": lambda x: [r.add_(i) for i, r in enumerate(x.unbind(0))][1] * 2,
    "split": lambda x: x.split([1, 3])[1].mul_(2), "expand same": lambda x: x.expand(4, 6).add_(1), "squeeze": lambda x: x[None].squeeze(0).add_(1),
    "fresh inplace": lambda x: (x * 2).add_(1).mul_(x), "out": lambda x: torch.add(x, 1, out=torch.empty(4, 6)), "out used": lambda x: torch.mul(x, 2, out=x),
    "foreach": lambda x: torch._foreach_add_([x[0], x[1]], 1), "detach": lambda x: x.detach().add_(1), "slice back": lambda x: x[1:3],
    "clone": lambda x: x.clone(), "same memory later": lambda x: (x.view(-1), x.add_(1))[0], "uniform_": lambda x: x.uniform_(),
    "dropout": lambda x: F.dropout(x, 0.5, training=True), "normal_": lambda x: torch.empty(3).normal_() + x[0, :3], "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "rand twice": lambda x: (torch.rand(3), torch.rand(3)), "cumsum_": lambda x: x.cumsum_(0), "tril_": lambda x: x.tril_(),
    "lerp_": lambda x: x.lerp_(x.flip(1), 0.3), "addcmul_": lambda x: x.addcmul_(x, x, value=2), "zero_ then": lambda x: x.zero_().add_(1)[0] + 1,
    "as_strided": lambda x: (x * 1).as_strided((2, 3), (6, 1), 1).add_(1) * 2,
}


@pytest.mark.parametrize("name", INPLACE)
def test_inplace(name):
    check(INPLACE[name], x_(4, 6))


@pytest.mark.parametrize("name", ["add_", "chain", "loop", "slice step", "copy_", "fill_", "fresh views", "views of views"])
def test_inplace_on_a_strided_input(name):
    if name == "views of views":
        pytest.skip("view() needs a contiguous input")
    check(INPLACE[name], x_(6, 4).t())
    check(INPLACE[name], x_(8, 6)[::2])


def test_two_inputs():
    def fn(x, y):
        x.add_(y)
        y[0] = x[1]
        x[0].mul_(y[0])
        return x + y, y[1]

    check(fn, x_(3, 4), x_(3, 4, seed=1))


def test_batch_norm_in_training_updates_its_statistics():
    def fn(x, mean, var, w, b, count):
        count.add_(1)
        return F.batch_norm(x, mean, var, w, b, training=True)

    check(fn, x_(5, 3, 4), x_(3), x_(3).abs(), x_(3), x_(3), torch.tensor(0), factor=8)


def test_a_row_of_a_cache_is_stored_alone():
    def fn(cache, row, q):
        cache[:, :, 7] = row
        return torch.einsum("bhd,bhtd->bht", q, cache)

    graph = check(fn, x_(2, 3, 16, 4), x_(2, 3, 4), x_(2, 3, 4, seed=2))
    (target,) = graph.in_place
    (store,) = graph.stores
    types = graph.types()
    assert types[store.value].elems == 2 * 3 * 4
    assert store.offset == 7 * 4 and store.state == dict(graph.writes)[target]


def test_layers_of_one_cache_are_stored_one_after_the_other():
    def fn(cache, row, y):
        for layer in range(2):
            cache[layer].transpose(0, 1)[:, 3] = row
            y = y + cache[layer]
        return y

    graph = check(fn, x_(2, 16, 8, 4), x_(8, 4), x_(16, 8, 4))
    assert len(graph.stores) == 2 and len({s.state for s in graph.stores}) == 2


def test_nothing_is_in_place_before_what_can_raise():
    def fn(x, i, w):
        x.add_(1)
        return F.embedding(i, w) + x

    assert check(fn, x_(4), torch.tensor([0, 2]), x_(5, 4)).in_place == ()


def test_nothing_is_in_place_while_the_old_value_is_read():
    def fn(x):
        old = x[0]
        y = x * 2
        kept = old.clone()
        x.mul_(3)
        return kept + 1, y

    graph = check(fn, x_(4, 4))
    position = {r: k for k, op in enumerate(graph.ops) for r in op.results}
    for store in graph.stores:
        readers = [k for k, op in enumerate(graph.ops) if store.target in op.refs()]
        assert max(readers) <= position[store.state]


def test_conjugate_views_are_read_when_their_base_has_changed():
    def fn(x, y):
        z = torch.complex(x, y)
        w = z.conj()
        before = torch.view_as_real(w * 2)
        z.mul_(3)
        w[0].add_(1)
        return before, torch.view_as_real(w + 1), torch.view_as_real(z), (z.conj().imag * -1) + 0

    check(fn, x_(3), x_(3, seed=1))


def test_rotary_embedding_by_complex_product():
    def fn(x, angles):
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)

    check(fn, x_(2, 5, 8), x_(5, 4))


REFUSED = {
    "view in another dtype given out": (lambda x: x.view(torch.int32), "unknown_view"),
    "conjugate view given out": (lambda x: torch.complex(x, x).conj(), "unknown_view"),
    "offset of an outside tensor": (lambda x: x.as_strided((2,), (1,), 1) + 1, "unknown_view"),
    "expanded": (lambda x: x.expand(3, 4).index_add_(0, torch.tensor([0]), torch.ones(1, 4)), "written_overlap"),
    "row of an expanded view": (lambda x: x.expand(3, 4)[0].add_(1), "written_overlap"),
    "window from an empty view": (lambda x: (x * 2)[:, 2:2].as_strided((2,), (1,)) + 1, "unknown_view"),
    "row of a window": (lambda x: (x * 2).as_strided((3, 2), (1, 1), 0)[0].add_(1), "written_overlap"),
    "other sizes": (lambda x: x.resize_(2, 2, 2), "metadata_write"),
    "unfold": (lambda x: x[0].unfold(0, 2, 2)[0].add_(1), "written_view"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    fn, reason = REFUSED[name]
    given = torch.randn(1, 4)
    graph, _, _ = record(fn, [given]) if name != "expanded" else (_expanded_graph(), None, None)
    with pytest.raises(Unsupported) as caught:
        functionalize(graph)
    assert caught.value.reason == reason


def _expanded_graph() -> Graph:
    graph, _, _ = record(lambda x: x.add_(1), [torch.randn(3, 4)])
    input = graph.inputs[0]
    type = input.type.__class__("float32", (3, 4), (0, 1))
    ops = tuple(replace(op, types=(type,)) for op in graph.ops)
    return Graph("aten", (Input(input.id, type),), ops, graph.outputs)


def test_inputs_that_may_overlap_are_read_but_not_written():
    t = x_(5)
    graph, _, _ = record(lambda a, b: a + b, [t[:4].clone(), t[1:].clone()])
    shared = Graph("aten", tuple(Input(i.id, i.type, i.name, 0) for i in graph.inputs), graph.ops, graph.outputs)
    core = lower(shared, is_checked=True)
    assert torch.equal(interpret.run(core, [t[:4], t[1:]])[0], t[:4] + t[1:])
    graph, _, _ = record(lambda a, b: a.add_(b)[0], [t[:4].clone(), t[1:].clone()])
    shared = Graph("aten", tuple(Input(i.id, i.type, i.name, 0) for i in graph.inputs), graph.ops, graph.outputs)
    with pytest.raises(Unsupported, match="written_overlap"):
        lower(shared)


def test_a_view_of_made_memory_lies_in_an_appended_output():
    graph = check(lambda x: (x * 2).view(2, -1).t(), x_(4, 6))
    assert len(graph.outputs) == 2 and graph.output_aliases[0].kind == "output"


def test_random_programs_of_views_and_writes():
    """Seeded: chains of views over two tensors, written and read in random order."""
    import random

    views = [lambda t: t[1:], lambda t: t[..., ::2], lambda t: t.transpose(0, -1), lambda t: t.unsqueeze(0),
             lambda t: t[0], lambda t: t.flatten(), lambda t: t * 1, lambda t: t[-1:], lambda t: t.movedim(0, -1)]
    writes = [lambda t: t.add_(1), lambda t: t.mul_(2), lambda t: t.zero_(), lambda t: t.neg_(),
              lambda t: t.copy_(t.flip(0)) if t.dim() else t.add_(3)]
    for seed in range(60):
        plan = random.Random(seed)
        steps = [(plan.random(), plan.randrange(99), plan.randrange(99)) for _ in range(8)]

        def fn(x, y):
            known = [x, y]
            for kind, which, what in steps:
                t = known[which % len(known)]
                if kind < 0.5 and t.dim() and t.numel():
                    known.append(views[what % len(views)](t))
                else:
                    writes[what % len(writes)](t)
            return known[2:] + [known[-1].sum()]

        check(fn, x_(3, 4, seed=seed), x_(2, 3, 2, seed=seed + 1))


def miopen_batch_norm(reads_mean, is_training=True):
    """A batch norm as MIOpen does it, of which nobody reads a result, and perhaps one that reads its mean."""
    b = Builder("aten")
    image, channels = tensor("float32", (2, 3, 4, 4)), tensor("float32", (3,))
    x, weight, bias, mean, variance = [
        b.input(type, name) for type, name in zip((image, *[channels] * 4), "xwbmv")]
    results = [b.fresh() for _ in range(3)]
    refs = tuple(map(Ref, (x, weight, bias, mean, variance)))
    b.append(Op(
        "aten.miopen_batch_norm.default", (*refs, is_training, 0.1, 1e-5), tuple(results), (image, *[channels] * 2)))
    read, type = (mean, channels) if reads_mean else (x, image)
    return b.finish([b.add("aten.neg.default", [read], type)])


def test_statistics_that_a_library_writes_unseen_are_written_once():
    core = lower(miopen_batch_norm(reads_mean=False))
    assert [op.name for op in core.ops] == ["library", "neg"]
    with pytest.raises(Unsupported, match="miopen_batch_norm"):
        lower(miopen_batch_norm(reads_mean=True))
    lower(miopen_batch_norm(reads_mean=True, is_training=False))


def test_a_copy_in_another_shape_is_no_view():
    """`x.T.reshape(-1)`: autograd knows nothing of the copy, so what it gives may be detached in place."""
    compiled = preheat.compile(lambda x: (x.T.reshape(-1), (x + 1).reshape(-1)), options={"cache": False})
    for _ in range(3):
        copy, view = compiled(torch.arange(6.0).reshape(2, 3))
        assert not copy._is_view() and view._is_view()
        copy.detach_().mul_(2)
        assert torch.equal(copy, torch.tensor([0.0, 6, 2, 8, 4, 10]))
