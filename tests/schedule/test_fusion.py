"""What fuses, and how many bytes the kernels move: counts are part of the contract."""

import pytest
from schedule.graphs import Make, compare, kernel_bytes

from preheat.ir.plan import KernelCall, LibraryCall, ProductCall

F32 = 4


def kinds(plan) -> list[str]:
    return [type(call).__name__ for call in plan.calls]


def test_a_gelu_chain_is_one_kernel():
    m = Make()
    x, w, b = m.input(64, 96), m.input(96), m.input(64, 96)
    plan = compare(m.graph(m.op("add", m.op("mul", m.gelu(m.op("add", x, w)), b), x)))
    assert kinds(plan) == ["KernelCall"]
    assert kernel_bytes(plan) == F32 * (3 * 64 * 96 + 96)


def test_a_contiguous_chain_is_one_flat_loop():
    m = Make()
    x, y = m.input(4, 6, 10), m.input(4, 6, 10)
    plan = compare(m.graph(m.op("exp", m.op("sub", x, y))))
    assert plan.kernels[0].lane == "i0" and len(plan.kernels[0].axes) == 1


def test_softmax_is_one_kernel():
    m = Make()
    x = m.input(6, 5, 40)
    plan = compare(m.graph(m.softmax(m.op("mul", x, (0.125,)), 2)))
    assert kinds(plan) == ["KernelCall"]
    assert kernel_bytes(plan) == F32 * 2 * 6 * 5 * 40
    assert len(plan.kernels[0].stages) == 3


def test_residual_and_layer_norm_are_one_kernel():
    m = Make()
    x, y, w, b = m.input(4, 8, 96), m.input(4, 8, 96), m.input(96), m.input(96)
    h = m.op("add", x, y)
    plan = compare(m.graph(m.layer_norm(h, w, b), h))
    assert kinds(plan) == ["KernelCall"]
    assert kernel_bytes(plan) == F32 * (4 * 4 * 8 * 96 + 2 * 96)


def test_the_embedding_block_of_bert_is_one_kernel():
    m = Make()
    words, places, kinds_, ids = (
        m.input(50, 32),
        m.input(16, 32),
        m.input(2, 32),
        m.input(3, 8, dtype="int64"),
    )
    types = m.input(3, 8, dtype="int64")
    w, b = m.input(32), m.input(32)
    positions = m.add(
        "iota", [], m.type(ids).__class__("int64", (1, 8), (8, 1)), axis=1, start=0, step=1
    )
    h = m.op("add", m.take(words, ids), m.take(kinds_, types))
    h = m.op("add", h, m.take(places, positions))
    plan = compare(m.graph(m.layer_norm(h, w, b)), high=2)
    assert kinds(plan) == ["KernelCall"]


def bert_layer(m: Make, x: int, batch: int, length: int, width: int, heads: int) -> int:
    """One encoder layer with attention written out."""

    def linear(value: int, columns: int) -> int:
        inner = m.type(value).sizes[1]
        weight = m.permute(m.input(columns, inner), 1, 0)
        return m.op("add", m.matmul(value, weight), m.input(columns))

    def split(value: int) -> int:
        part = m.reshape(value, batch, length, heads, width // heads)
        return m.permute(part, 0, 2, 1, 3)

    def view(value: int) -> int:
        return m.reshape(value, batch * length, m.type(value).sizes[-1])

    flat = view(x)
    q, k, v = (split(linear(flat, width)) for _ in range(3))
    scores = m.op("mul", m.matmul(q, m.permute(k, 0, 1, 3, 2)), (0.25,))
    context = m.matmul(m.softmax(scores, 3), v)
    context = m.reshape(m.permute(context, 0, 2, 1, 3), batch * length, width)
    h = m.op("add", m.reshape(linear(context, width), batch, length, width), x)
    h = m.layer_norm(h, m.input(width), m.input(width))
    wide = m.gelu(linear(view(h), 4 * width))
    out = m.op("add", m.reshape(linear(wide, width), batch, length, width), h)
    return m.layer_norm(out, m.input(width), m.input(width))


def test_a_bert_layer_has_minimal_kernels_between_its_products():
    m = Make()
    x = m.input(2, 12, 32)
    plan = compare(m.graph(bert_layer(m, x, 2, 12, 32, 4)))
    assert sum(isinstance(c, ProductCall) for c in plan.calls) == 8
    assert not any(isinstance(c, LibraryCall) for c in plan.calls)
    kernels = [plan.kernels[c.kernel].name for c in plan.calls if isinstance(c, KernelCall)]
    assert len(kernels) <= 8, kernels


def test_siblings_that_read_the_same_memory_share_a_kernel():
    m = Make()
    x = m.input(64, 64)
    plan = compare(m.graph(m.op("exp", x), m.op("neg", x)))
    assert kinds(plan) == ["KernelCall"]


def test_equal_kernels_are_made_once():
    m = Make()
    x = m.input(16, 16)
    for _ in range(3):
        w = m.permute(m.input(16, 16), 1, 0)
        x = m.gelu(m.op("add", m.matmul(x, w), m.input(16)))
    plan = compare(m.graph(x))
    assert kinds(plan) == ["ProductCall", "KernelCall"] * 3
    assert len(plan.kernels) <= 2  # in place in the arena, and into the output
    assert plan.arena_bytes <= 3 * 16 * 16 * F32


def test_a_weight_transpose_is_a_stride_of_the_product():
    m = Make()
    x, w = m.input(12, 16), m.input(24, 16)
    plan = compare(m.graph(m.matmul(x, m.permute(w, 1, 0))))
    assert kinds(plan) == ["ProductCall"]
    assert plan.buffers[plan.calls[0].b].type.strides == (1, 16)


@pytest.mark.parametrize("dtype", ["bfloat16", "int64"])
def test_other_products_are_library_calls(dtype):
    m = Make()
    x, w = m.input(12, 16, dtype=dtype), m.input(24, 16, dtype=dtype)
    plan = compare(m.graph(m.matmul(x, m.permute(w, 1, 0))))
    assert kinds(plan) == ["LibraryCall"]


def test_a_column_sum_is_in_lane_form():
    m = Make()
    x = m.input(50, 48)
    plan = compare(m.graph(m.reduce("sum", x, 0, keepdim=False)))
    assert kinds(plan) == ["KernelCall"] and plan.kernels[0].lane is not None


def test_batch_norm_statistics_and_its_use():
    m = Make()
    x = m.input(5, 12, 3, 4)
    mean = m.mean(x, 0, 2, 3)
    centred = m.op("sub", x, mean)
    variance = m.mean(m.op("mul", centred, centred), 0, 2, 3)
    compare(m.graph(m.op("mul", centred, m.op("rsqrt", m.op("add", variance, (1e-5,)))), mean))
