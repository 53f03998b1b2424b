"""Plans that people read: what a graph becomes, in full."""

from schedule.graphs import Make, compare

from preheat.ir.graph import Graph
from preheat.ir.text import show
from preheat.ir.types import tensor


def check(golden, name: str, graph: Graph, high: int = 5) -> None:
    golden(f"schedule_{name}", f"{show(graph)}\n\n{show(compare(graph, high=high))}")


def test_gelu_chain(golden):
    m = Make()
    x, b = m.input(64, 96), m.input(96)
    check(golden, "gelu", m.graph(m.gelu(m.op("add", x, b))))


def test_softmax(golden):
    m = Make()
    check(golden, "softmax", m.graph(m.softmax(m.input(6, 5, 40), 2)))


def test_masked_softmax(golden):
    m = Make()
    x, mask = m.input(2, 3, 8, 8), m.input(2, 1, 1, 8, dtype="bool")
    mask = m.expand(mask, 2, 3, 8, 8)
    score = m.op("mul", x, (0.125,))
    masked = m.add(
        "where", [mask, score, m.full(-1e9, 2, 3, 8, 8)], tensor("float32", (2, 3, 8, 8))
    )
    check(golden, "masked_softmax", m.graph(m.softmax(masked, 3)))


def test_residual_layer_norm(golden):
    m = Make()
    x, y, w, b = m.input(4, 8, 96), m.input(4, 8, 96), m.input(96), m.input(96)
    h = m.op("add", x, y)
    check(golden, "layer_norm", m.graph(m.layer_norm(h, w, b), h))


def test_embedding_layer_norm(golden):
    m = Make()
    words, places, ids = m.input(50, 32), m.input(16, 32), m.input(3, 8, dtype="int64")
    h = m.op("add", m.take(words, ids), m.slice(places, 0, 0, 8))
    check(golden, "embedding", m.graph(m.layer_norm(h, m.input(32), m.input(32))))


def test_linear_gelu(golden):
    m = Make()
    x, w, b = m.input(12, 16), m.input(24, 16), m.input(24)
    check(golden, "linear_gelu", m.graph(m.gelu(m.op("add", m.matmul(x, m.permute(w, 1, 0)), b))))


def test_linear(golden):
    m = Make()
    x, w, b = m.input(12, 16), m.input(24, 16), m.input(24)
    check(golden, "linear", m.graph(m.op("add", m.matmul(x, m.permute(w, 1, 0)), b)))


def test_column_sum(golden):
    m = Make()
    check(golden, "column_sum", m.graph(m.reduce("sum", m.input(50, 48), 0, keepdim=False)))


def test_optimizer_step(golden):
    m = Make()
    p, g, v = m.input(4, 6), m.input(4, 6), m.input(4, 6)
    momentum = m.op("add", m.op("mul", v, (0.9,)), g)
    moved = m.op("sub", p, m.op("mul", momentum, (0.1,)))
    check(golden, "momentum", m.graph(writes=[(v, momentum), (p, moved)]))


def test_linear_of_one_row(golden):
    m = Make()
    made = m.op("add", m.matmul(m.input(1, 40), m.permute(m.input(24, 40), 1, 0)), m.input(24))
    check(golden, "linear_one_row", m.graph(m.op("maximum", made, (0.0,))))


def test_linear_of_few_rows(golden):
    m = Make()
    made = m.op("add", m.matmul(m.input(3, 40), m.permute(m.input(24, 40), 1, 0)), m.input(24))
    check(golden, "linear_few_rows", m.graph(made))


def test_bfloat16_linear_of_one_row(golden):
    m = Make()
    w, x = m.input(128, 40, dtype="bfloat16"), m.input(1, 40, dtype="bfloat16")
    check(golden, "linear_bfloat16", m.graph(m.matmul(x, m.permute(w, 1, 0))))


def test_product_of_one_row(golden):
    m = Make()
    check(golden, "product_one_row", m.graph(m.matmul(m.input(2, 1, 24), m.input(2, 24, 40))))
