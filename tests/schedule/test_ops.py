"""Every kind of core op, alone and in company, against the interpreter."""

import pytest
import torch
from schedule.graphs import TARGET, Make, compare
from schedule.loop_interpret import Fault, run_plan

from preheat.base.errors import Unsupported
from preheat.bridge.ops import overload
from preheat.ir.graph import Op, OutputAlias, Ref, Token
from preheat.ir.plan import KernelCall, LibraryCall
from preheat.ir.scalar import symbol
from preheat.ir.types import tensor
from preheat.schedule.library import OVERLOADS
from preheat.schedule.schedule import schedule
from preheat.transform.reinplace import reinplace


@pytest.mark.parametrize(
    "dtype",
    ["float32", "float64", "bfloat16", "float16", "int64", "int32", "int8", "uint8", "bool"],
)
def test_dtypes(dtype):
    m = Make()
    x, y = m.input(3, 5, dtype=dtype), m.input(3, 5, dtype=dtype)
    wide = "float32" if dtype in ("bfloat16", "float16") else dtype
    a, b = (m.cast(v, wide) if wide != dtype else v for v in (x, y))
    total = m.op("add", a, m.op("mul", a, b))
    compare(
        m.graph(
            m.cast(total, dtype) if wide != dtype else total,
            m.op("lt", a, b),
            m.cast(total, "float32"),
        )
    )


@pytest.mark.parametrize("strides", [(1, 4), (10, 2), (0, 1), (8, 0), (0, 0), (1, 1)])
def test_strided_inputs(strides):
    m = Make()
    x = m.input(4, 5, strides=strides)
    compare(m.graph(m.op("exp", x), m.reduce("sum", x, 1), m.reduce("max", x, 0)))


@pytest.mark.parametrize("strides", [(1, 4), (10, 2), (0, 1)])
def test_strided_outputs(strides):
    m = Make()
    x = m.input(5) if strides[0] == 0 else m.input(4, 5)
    y = m.op("exp", x)
    if strides[0] == 0:
        y = m.expand(y, 4, 5)
    else:
        y = m.add("neg", [y], tensor("float32", (4, 5), strides))
    compare(m.graph(y))


def test_scalars_and_empty_tensors():
    m = Make()
    x, e, z = m.input(), m.input(0, 4), m.input(3, 0)
    plan = compare(
        m.graph(
            m.op("exp", x),
            m.op("neg", e),
            m.reduce("sum", z, 1),
            m.reduce("any", m.op("gt", z, (0.0,)), 0, 1),
            m.matmul(z, e),
        )
    )
    assert plan.buffers[-1].type.elems in (0, 1, 9)


def test_a_product_over_nothing_is_zero():
    m = Make()
    compare(m.graph(m.matmul(m.input(3, 0), m.input(0, 4))))


def test_an_empty_result_of_a_call_is_made_for_the_next_call():
    m = Make()
    empty = m.matmul(m.input(5, 4), m.input(4, 0))
    compare(m.graph(m.matmul(empty, m.input(0, 2))))


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 2), (1, 2), (0, 1, 2), (0, 1)])
@pytest.mark.parametrize("name", ["sum", "max", "prod", "min"])
def test_reductions(name, axes):
    m = Make()
    x = m.input(3, 4, 5)
    r = m.reduce(name, x, *axes, keepdim=False)
    compare(m.graph(r, m.op("neg", r)))


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_argument_reductions(name, axis):
    m = Make()
    x = m.input(3, 4, 5, dtype="int32")
    compare(m.graph(m.reduce(name, x, axis, keepdim=False), m.reduce(name, m.op("neg", x), axis)))


def test_boolean_and_integer_reductions():
    m = Make()
    x = m.input(4, 6, dtype="int32")
    b = m.op("gt", x, (2,))
    compare(
        m.graph(
            m.reduce("any", b, 1),
            m.reduce("all", b, 0),
            m.reduce("sum", b, 1),
            m.reduce("sum", x, 0, 1),
        )
    )


def test_half_sums_accumulate_wide():
    m = Make()
    x = m.input(4, 300, dtype="bfloat16")
    compare(m.graph(m.add("sum", [x], tensor("bfloat16", (4, 1)), axes=(1,), keepdim=True)))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_softmax_along_any_axis(axis):
    m = Make()
    compare(m.graph(m.softmax(m.input(4, 5, 6), axis)))


def test_movement_folds_into_indices():
    m = Make()
    x = m.input(4, 6, 8)
    y = m.permute(m.flip(m.slice(m.op("exp", x), 1, 1, 6, 2), 0), 2, 0, 1)
    plan = compare(m.graph(m.op("add", y, m.permute(m.slice(x, 1, 0, 3), 2, 0, 1))))
    assert len(plan.calls) == 1


@pytest.mark.parametrize(
    "old,new",
    [
        ((4, 6), (24,)),
        ((24,), (4, 6)),
        ((4, 6), (3, 8)),
        ((2, 3, 4), (4, 3, 2)),
        ((6, 4), (2, 12)),
        ((5, 7), (7, 5)),
        ((1, 6), (2, 1, 3)),
        ((1,), (1, 1)),
        ((8, 9), (6, 12)),
    ],
)
def test_any_reshape(old, new):
    m = Make()
    x = m.input(*old)
    turned = m.permute(x, *range(len(old))[::-1])
    sizes = new
    compare(
        m.graph(
            m.op("exp", m.reshape(turned, *sizes)),
            m.reduce("sum", m.reshape(m.op("neg", x), *sizes), len(new) - 1),
        )
    )


def test_a_transposed_copy_goes_square_by_square():
    m = Make()
    x, y = m.input(32, 64), m.input(64, 32)
    plan = compare(m.graph(m.op("add", m.permute(m.op("exp", x), 1, 0), y)))
    (stage,) = plan.kernels[0].stages
    assert [a.extent for a in stage.axes] == [16, 16] and plan.calls[0].extent == 8


def test_pad_and_cat_are_masked_loads():
    m = Make()
    x, y = m.input(3, 4), m.input(2, 4)
    p = m.pad(x, (1, 0), (0, 2), 5.0)
    q = m.cat(0, m.op("exp", x), y, m.op("neg", y))
    compare(
        m.graph(
            m.op("mul", p, m.slice(m.cat(1, q, m.slice(q, 1, 0, 2)), 0, 0, 4)),
            q,
            m.reduce("sum", p, 1),
        )
    )


def test_a_large_cat_is_stored_part_by_part():
    m = Make()
    x, y, w = m.input(8, 40, 30), m.input(8, 24, 30), m.input(30, 30)
    joined = m.cat(1, m.op("exp", x), y, m.op("neg", y))
    plan = compare(
        m.graph(joined, m.matmul(m.reshape(joined, 8 * 88, 30), w), m.reduce("sum", joined, 2))
    )
    assert not any(op.mask is not None for k in plan.kernels[:2] for s in k.stages for op in s.body)


@pytest.mark.parametrize("axes", [(0, 1), (1, 0), (1, 1), (2, 1), (0, 2)])
@pytest.mark.parametrize("is_reshaped", [False, True])
@pytest.mark.parametrize("is_read", [False, True])
def test_a_cat_within_a_cat_is_stored_part_by_part(axes, is_reshaped, is_read):
    m = Make()
    x = m.input(8, 40, 30)
    inner = m.cat(axes[0], m.op("exp", x), m.op("neg", x))
    joined = m.cat(axes[1], inner, inner, m.input(*m.type(inner).sizes))
    rows, columns, depth = m.type(joined).sizes
    made = m.reshape(joined, rows * columns // 4, depth * 4) if is_reshaped else joined
    others = [m.reduce("sum", joined, 2), m.op("abs", inner)] if is_read else []
    plan = compare(m.graph(made, *others))
    is_masked = any(op.mask is not None for k in plan.kernels for s in k.stages for op in s.body)
    assert is_read or not is_masked


def test_rotation_of_halves():
    m = Make()
    q, c, s = m.input(2, 3, 8), m.input(3, 8), m.input(3, 8)
    turned = m.cat(2, m.op("neg", m.slice(q, 2, 4, 8)), m.slice(q, 2, 0, 4))
    plan = compare(m.graph(m.op("add", m.op("mul", q, c), m.op("mul", turned, s))))
    assert len(plan.calls) == 1


@pytest.mark.parametrize("start,step,size", [(0, 1, 2), (2, 1, 3), (1, 2, 2), (0, 3, 2), (4, 1, 1)])
def test_place(start, step, size):
    m = Make()
    x, y = m.input(5, 3), m.input(size, 3)
    compare(
        m.graph(
            m.op("exp", m.place(x, m.op("neg", y), 0, start, step)), m.place(x, y, 0, start, step)
        )
    )


def test_iota_full_and_masks():
    m = Make()
    x = m.input(4, 4)
    rows = m.add("iota", [], tensor("int64", (4, 4)), axis=0, start=0, step=1)
    columns = m.add("iota", [], tensor("int64", (4, 4)), axis=1, start=0, step=1)
    keep = m.op("ge", rows, columns)
    masked = m.add("where", [keep, x, m.full(float("-inf"), 4, 4)], tensor("float32", (4, 4)))
    ramp = m.add("iota", [], tensor("float32", (4, 4)), axis=1, start=0.5, step=0.25)
    plan = compare(m.graph(m.softmax(masked, 1), ramp))
    assert len(plan.calls) <= 2


def test_gathers():
    m = Make()
    x, i, j = m.input(5, 6), m.input(3, 4, dtype="int64"), m.input(5, 2, dtype="int32")
    taken = m.take(m.op("exp", x), i, 0)
    across = m.take(x, i, 1)
    gathered = m.add("gather", [x, j], tensor("float32", (5, 2)), axis=1)
    picked = m.add("index", [x, i, i], tensor("float32", (3, 4)), axes=(0, 1))
    compare(m.graph(taken, across, gathered, picked))


def test_indices_at_separate_axes():
    m = Make()
    x, i = m.input(5, 6, 5), m.input(3, dtype="int64")
    compare(
        m.graph(
            m.add("index", [x, i, i], tensor("float32", (3, 6)), axes=(0, 2)),
            m.add("index", [x, i], tensor("float32", (5, 3, 5)), axes=(1,)),
        )
    )


def test_a_bad_index_raises_the_flag():
    m = Make()
    graph = m.graph(m.take(m.input(5, 6), m.input(3, dtype="int64"), 0))
    plan = schedule(graph, TARGET)
    with pytest.raises(Fault):
        run_plan(plan, [torch.randn(5, 6), torch.tensor([0, 5, 1])])
    with pytest.raises(Fault):
        run_plan(plan, [torch.randn(5, 6), torch.tensor([0, -1, 1])])


def test_a_bad_index_is_found_where_only_a_part_is_used():
    m = Make()
    taken = m.op("exp", m.take(m.input(5, 6), m.input(4, dtype="int64"), 0))
    plan = schedule(m.graph(m.slice(taken, 0, 0, 2)), TARGET)
    with pytest.raises(Fault):
        run_plan(plan, [torch.randn(5, 6), torch.tensor([0, 1, 2, 5])])


def test_integer_division_by_zero_raises_the_flag():
    m = Make()
    graph = m.graph(m.op("floordiv", m.input(6, dtype="int64"), m.input(6, dtype="int64")))
    plan = schedule(graph, TARGET)
    x = torch.arange(6)
    assert torch.equal(run_plan(plan, [x, x + 1])[0], x // (x + 1))
    with pytest.raises(Fault):
        run_plan(plan, [x, x])


@pytest.mark.parametrize("name", ["sum", "max"])
@pytest.mark.parametrize(
    "sizes,axes",
    [((2, 70000), (1,)), ((65536,), (0,)), ((4800, 3), (0,)), ((64, 20, 60), (0, 1, 2))],
)
def test_long_reductions_are_cut(name, sizes, axes):
    m = Make()
    plan = compare(m.graph(m.reduce(name, m.input(*sizes), *axes, keepdim=False)))
    assert len(plan.calls) == 2


def test_a_long_softmax_is_right_though_its_reductions_are_cut():
    m = Make()
    x = m.input(1, 65536)
    compare(m.graph(m.softmax(x, 1), m.layer_norm(x, m.input(65536), m.input(65536))))


def test_a_symbolic_size_is_refused_with_a_reason():
    m = Make()
    x = m.input(symbol("n"), 8)
    y = m.add("exp", [x], m.type(x))
    for graph in (
        m.graph(y),
        m.graph(m.add("reshape", [y], tensor("float32", (symbol("n") * 8,)))),
    ):
        with pytest.raises(Unsupported, match="symbolic"):
            schedule(graph, TARGET)


def test_complex_numbers_are_moved_but_not_computed():
    m = Make()
    x = m.input(4, 6, dtype="complex64")
    plan = compare(m.graph(m.permute(m.slice(x, 1, 1, 5), 1, 0)))
    assert [p.dtype for p in plan.kernels[0].params] == ["int64", "int64"]


# ---------------------------------------------------------------------------- outputs and writes
def test_an_input_and_a_repeated_value_are_copied_when_fresh():
    m = Make()
    x = m.input(4, 5)
    y = m.op("exp", x)
    compare(m.graph(x, y, y, m.permute(x, 1, 0)))


def test_aliased_outputs_need_no_memory():
    m = Make()
    x = m.input(4, 6)
    y = m.op("exp", x)
    aliases = (OutputAlias("input", 0, 6), OutputAlias(), OutputAlias("output", 1, 1))
    row, column = m.slice(x, 0, 1, 3), m.slice(y, 1, 1, 2)
    plan = compare(m.graph(row, y, column, output_aliases=aliases))
    assert len(plan.calls) == 1


def test_writes_come_after_every_read():
    m = Make()
    x, y = m.input(4, 6), m.input(4, 6)
    moved = m.op("add", m.flip(x, 0), y)
    compare(
        m.graph(m.op("exp", x), m.reduce("sum", x, 0), writes=[(x, moved), (y, m.op("mul", x, y))])
    )


def test_an_elementwise_write_is_in_place_in_one_kernel():
    m = Make()
    p, g, v = m.input(4, 6), m.input(4, 6), m.input(4, 6)
    momentum = m.op("add", m.op("mul", v, (0.9,)), g)
    moved = m.op("sub", p, m.op("mul", momentum, (0.1,)))
    plan = compare(m.graph(writes=[(v, momentum), (p, moved)]))
    assert [type(c) for c in plan.calls] == [KernelCall]
    assert sorted(p.role for p in plan.kernels[0].params) == ["in", "inout", "inout"]


def test_checks_come_before_writes():
    m = Make()
    x, i, y = m.input(5, 6), m.input(5, dtype="int64"), m.input(5, 6)
    moved = m.op("add", x, m.take(y, i, 0))
    plan = compare(m.graph(m.op("exp", m.take(x, i, 0)), writes=[(x, moved)]))
    assert len(plan.calls) >= 2


def test_swapped_inputs():
    m = Make()
    x, y = m.input(4, 6), m.input(4, 6)
    compare(m.graph(writes=[(x, y), (y, x)]))


def test_a_cache_row_is_written_in_place():
    m = Make()
    cache, row = m.input(2, 16, 4), m.input(2, 1, 4)
    new = m.place(cache, m.op("mul", row, (2.0,)), 1, 5)
    scores = m.matmul(new, m.permute(row, 0, 2, 1))
    graph = reinplace(m.graph(scores, m.reduce("sum", new, 1), writes=[(cache, new)]))
    assert graph.in_place == (cache,)
    plan = compare(graph)
    first = plan.calls[0]
    assert first.bytes <= 2 * 2 * 4 * 4


def test_two_rows_of_a_cache_are_written_in_place():
    m = Make()
    cache, row = m.input(16, 4), m.input(1, 4)
    first = m.place(cache, m.op("mul", row, (2.0,)), 0, 5)
    total = m.reduce("sum", first, 1)
    second = m.place(first, m.op("neg", row), 0, 7)
    plan = compare(reinplace(m.graph(total, m.op("exp", second), writes=[(cache, second)])))
    writes = [
        c
        for c in plan.calls
        if any(
            plan.buffers[b].kind == "input" and p.role != "in"
            for b, p in zip(c.buffers, plan.kernels[c.kernel].params)
        )
    ]
    assert writes and all(c.bytes <= 4 * 4 * 4 for c in writes)


def test_a_write_to_an_expanded_input_is_refused():
    m = Make()
    x = m.input(4, 5, strides=(0, 1))
    with pytest.raises(Unsupported):
        schedule(m.graph(writes=[(x, m.op("exp", x))]), TARGET)


# ---------------------------------------------------------------------------- library calls
def library(m: Make, overload: str, args, *types, **attrs) -> list[int]:
    results = tuple(m.builder.next_id + k for k in range(len(types)))
    m.builder.append(
        Op("library", tuple(args), results, types, (*sorted(attrs.items()), ("op", overload)))
    )
    return list(results)


def test_library_operands_are_views_with_eager_strides():
    m = Make()
    x = m.input(4, 6)
    y = m.permute(m.op("exp", x), 1, 0)
    (sorted_, order) = library(
        m,
        "aten.sort.default",
        [Ref(y), 0, True],
        tensor("float32", (6, 4), (1, 6)),
        tensor("int64", (6, 4), (1, 6)),
    )
    plan = compare(m.graph(m.op("neg", sorted_)))
    assert len(plan.calls) == 3 and plan.calls[1].results[1] == -1  # nobody reads the order


def test_library_results_are_outputs():
    m = Make()
    x = m.input(4, 6)
    (total,) = library(
        m,
        "aten.cumsum.default",
        [Ref(x), 1],
        tensor("float64", (4, 6)),
        dtype=Token("dtype", "float64"),
    )
    compare(m.graph(total, m.op("exp", total)))


def test_library_calls_keep_their_order():
    m = Make()
    x = m.input(6, 600)
    total = m.op("add", m.op("exp", x), m.reduce("sum", x, 1))
    (first,) = library(m, "aten.bernoulli.default", [Ref(m.op("sigmoid", total))], m.type(x))
    (second,) = library(m, "aten.rand_like.default", [Ref(x)], m.type(x))
    plan = schedule(m.graph(m.op("add", first, second)), TARGET)
    assert [c.op for c in plan.calls if isinstance(c, LibraryCall)] == [
        "aten.bernoulli.default",
        "aten.rand_like.default",
    ]


@pytest.mark.parametrize("name", sorted({*OVERLOADS.values()}))
def test_overloads_exist(name):
    assert callable(overload(name))


def test_what_no_kernel_computes_exactly_is_a_library_call():
    m = Make()
    x = m.input(4, 6, dtype="float64")
    plan = compare(m.graph(m.op("exp", m.op("erfc", m.op("neg", x)))))
    assert [c.op for c in plan.calls if isinstance(c, LibraryCall)] == ["aten.erfc.default"]
