"""CUDA graphs: programs in mode "reduce-overhead" against the same compiled without graphs, and eager.

    make test-gpu        on a machine with a GPU

`check` runs a program often enough to be recorded and replayed, with new inputs each time, holds every
result until the end, and says how many calls were graphs.
"""


import pytest
import torch
import torch.nn.functional as F

import preheat
from gpu.test_programs import cuda
from gpu.threads import at_once
from preheat.base.events import bus
from preheat.run.lanes import Lanes
from preheat.run.replays import CALLS_BEFORE_GRAPH

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use"),
]


def graphed(fn, **options):
    return preheat.compile(fn, mode="reduce-overhead", options={"cache": False, **options})


def replays():
    return preheat.counters()["graph_replays"]


@pytest.fixture(autouse=True)
def told():
    """What was recorded, and what was not; pytest shows it where a test fails."""
    seen = []
    stop = bus.subscribe(seen.append, {"direct", "graph", "fallback"})
    yield seen
    stop()
    for event in seen:
        print(event.kind, *event.data.values())


def reasons(told):
    return [event.data["why"] for event in told if event.kind != "graph"]


def leaves(value):
    return [value] if isinstance(value, torch.Tensor) else list(value)


def check(fn, make, calls=8, least=None, **close):
    """Calls of `fn(*make(k))`: equal to eager's, and at least so many were graphs (by default half of
    those that can be: where an argument lay at one place at first, it is recorded twice)."""
    compiled = graphed(fn)
    held, expected = [], []
    with torch.no_grad():
        compiled(*make(0))  # captured
        before = replays()
        for k in range(calls):
            mine, theirs = make(k), make(k)
            held.append(leaves(compiled(*mine)))
            expected.append(leaves(fn(*theirs)))
            for one, other in zip(mine, theirs):
                torch.testing.assert_close(one, other)
    for mine, theirs in zip(held, expected):
        for one, other in zip(mine, theirs, strict=True):
            torch.testing.assert_close(one, other, **close)
            assert one.stride() == other.stride()
    assert replays() - before >= ((calls - CALLS_BEFORE_GRAPH) // 2 if least is None else least)


def layers(count=4, width=64):
    torch.manual_seed(0)
    parts = [m for _ in range(count) for m in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    return torch.nn.Sequential(*parts).cuda().eval()


# ---------------------------------------------------------------------------- what a graph may hold
def test_kernels_alone(told):
    def chain(x, y):
        z = (x * 2 + y).softmax(-1)
        return z, z.sum(0), (z - x).exp().mean(-1)

    check(chain, lambda k: (cuda(300, 500, seed=k), cuda(500, seed=k + 50)))
    assert not reasons(told)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_products(dtype, told):
    model = layers().to(getattr(torch, dtype))
    check(model, lambda k: (cuda(32, 64, dtype=dtype, seed=k),))
    assert not reasons(told)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_relu_of_a_product_keeps_nan_and_infinity(dtype):
    real = getattr(torch, dtype)
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU()).to(real).cuda()
    x = cuda(16, 64, dtype=dtype)
    x[3, 5], x[4, 6], x[5, 7] = float("nan"), float("inf"), float("-inf")
    compiled = preheat.compile(model, options={"cache": False})
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(x), model(x), equal_nan=True)


def test_convolutions(told):
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU(),
        torch.nn.MaxPool2d(2), torch.nn.Conv2d(16, 8, 3), torch.nn.GELU(),
        torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.LayerNorm(8)).cuda().eval()
    check(net, lambda k: (cuda(2, 3, 32, 32, seed=k),))
    assert not reasons(told)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_attention(dtype, told):
    torch.manual_seed(0)
    layer = torch.nn.Linear(32, 32).to(getattr(torch, dtype)).cuda()

    def attend(q, k):
        return layer(F.scaled_dot_product_attention(layer(q), k, k, is_causal=True)) * 2

    check(attend, lambda k: (
        cuda(2, 4, 64, 32, dtype=dtype, seed=k), cuda(2, 4, 64, 32, dtype=dtype, seed=k + 9)))
    assert not reasons(told)


def test_writes(told):
    def step(p, m, g):
        m.mul_(0.9).add_(g)
        p.sub_(m * 0.1)
        return p.sum(), (p @ m.t()).relu()

    check(step, lambda k: (cuda(100, 20, seed=k), cuda(100, 20, seed=k + 1), cuda(100, 20, seed=k + 2)),
          least=0)


def test_state_that_is_written_in_place(told):
    """A cache of keys: the same memory on each call, written by kernels, read by the library."""
    class Cached(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("keys", torch.zeros(64, 32))
            self.layer = torch.nn.Linear(32, 32)

        def forward(self, x, place):
            self.keys.index_copy_(0, place, self.layer(x))
            return self.keys @ x.t()

    torch.manual_seed(0)
    model = Cached().cuda()
    other = Cached().cuda()
    other.load_state_dict(model.state_dict())
    compiled = graphed(model)
    with torch.no_grad():
        before = replays()
        for k in range(10):
            x, place = cuda(3, 32, seed=k), torch.tensor([k, k + 1, k + 2], device="cuda")
            version = model.keys._version
            torch.testing.assert_close(compiled(x, place), other(x, place))
            torch.testing.assert_close(model.keys, other.keys)
            assert model.keys._version > version
        assert replays() - before >= 5


def test_aliases():
    def views(x):
        y = (x * 2).exp() + 1
        return y, y[1:3], y.t(), x[2:], x

    compiled = graphed(views)
    with torch.no_grad():
        for k in range(8):
            x = cuda(8, 6, seed=k)
            y, part, turned, mine, same = compiled(x)
            y.add_(1)
            assert part.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
            assert torch.equal(part, y[1:3]) and torch.equal(turned, y.t())
            mine.zero_()
            assert same is x and not x[2:].any()


def test_a_number_that_changes():
    def scaled(x, rate):
        return ((x * rate).softmax(-1) + rate).sum(0).softmax(-1), x - rate

    check(scaled, lambda k: (cuda(100, 50, seed=k), 0.5 + k), calls=12, least=5, rtol=1e-3,
          atol=1e-4)


def test_sizes_that_change():
    def pooled(x, w):
        return torch.relu(x @ w).softmax(-1).sum(0)

    sizes = [5, 9] + [16, 24] * 10
    check(pooled, lambda k: (cuda(sizes[k], 32, seed=k), cuda(32, 16)), calls=20, least=2)


def test_branches_and_host_steps(capsys):
    model = layers(2)

    def look(x):
        y = model(x) + 1
        print("seen")
        if y.sum().item() > 0:
            return model(y) * 2
        return model(-y)

    compiled = graphed(look)
    with torch.no_grad():
        before = replays()
        for k in range(24):
            x = cuda(16, 64, seed=k) * (100 if k % 2 else -100)
            torch.testing.assert_close(compiled(x), look(x))
        assert replays() - before >= 15


# ---------------------------------------------------------------------------- what moves
def test_parameters_that_change():
    model = layers()
    x = cuda(32, 64)
    compiled = graphed(model)
    with torch.no_grad():
        for _ in range(6):
            compiled(x)

        def same():
            torch.testing.assert_close(compiled(x), model(x))

        model[0].weight.mul_(2)  # in place
        same()
        before = replays()
        same()
        assert replays() == before + 1
        for k in range(6):
            model[0].weight.data = cuda(64, 64, seed=k)
            same()
        model[2].weight = torch.nn.Parameter(cuda(64, 64, seed=77))
        for _ in range(3):
            same()
        model[4] = torch.nn.Linear(64, 64).cuda()
        for _ in range(6):
            same()
        model.load_state_dict({k: v * 0.5 for k, v in model.state_dict().items()})
        same()
        before = replays()
        for _ in range(6):
            same()
        assert replays() - before >= 4


def test_numerics_that_are_switched():
    model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(3)]).cuda()
    x = cuda(512, 512)
    compiled = graphed(model)
    was = torch.backends.cuda.matmul.allow_tf32
    try:
        with torch.no_grad():
            for is_allowed in (False, True, False):
                torch.backends.cuda.matmul.allow_tf32 = is_allowed
                before = replays()
                for _ in range(8):
                    assert torch.equal(compiled(x), model(x))
                assert replays() - before >= 4
    finally:
        torch.backends.cuda.matmul.allow_tf32 = was


# ---------------------------------------------------------------------------- random numbers
def test_random_numbers_are_drawn_directly(told):
    def drop(x):
        return F.dropout(x * 2, 0.3, True) + torch.rand_like(x)

    compiled = graphed(drop)
    x = cuda(100, 30)
    with torch.no_grad():
        before = replays()
        for k in range(6):
            torch.manual_seed(k)
            mine = compiled(x), compiled(x), torch.rand(3, device="cuda")
            torch.manual_seed(k)
            theirs = drop(x), drop(x), torch.rand(3, device="cuda")
            assert all(map(torch.equal, mine, theirs))
        assert replays() == before
    assert any("random" in why for why in reasons(told))


# ---------------------------------------------------------------------------- streams, threads, captures
def test_streams():
    model = layers()
    compiled = graphed(model)
    streams = [torch.cuda.current_stream(), *(torch.cuda.Stream() for _ in range(2))]
    with torch.no_grad():
        before = replays()
        held = []
        for k in range(30):
            stream = streams[k % 3]
            with torch.cuda.stream(stream):
                x = cuda(64, 64, seed=k)
                held.append((compiled(x), model(x)))
        torch.cuda.synchronize()
        assert replays() - before >= 15
    for mine, theirs in held:
        torch.testing.assert_close(mine, theirs)


def test_threads():
    model = layers()
    compiled = graphed(model)
    own = [torch.cuda.Stream() for _ in range(2)]

    def work(seed):
        # two threads on the default stream, two on streams of their own
        stream = own[seed] if seed < 2 else torch.cuda.default_stream()
        with torch.cuda.stream(stream), torch.no_grad():
            for k in range(40):
                x = cuda(64, 64, seed=seed * 100 + k)
                torch.testing.assert_close(compiled(x), model(x))
        stream.synchronize()

    with torch.no_grad():
        compiled(cuda(64, 64))
    before = replays()
    at_once(work, range(4))
    assert replays() - before >= 80


def test_two_captures_of_the_programs_own_share_no_memory():
    """Recorded one after the other on one stream, replayed side by side on two."""
    def norms(x):
        for _ in range(3):
            x = (x - x.amax(0)).softmax(1)
        return x

    compiled = preheat.compile(norms, options={"cache": False})
    given = [cuda(512, 512, seed=k) for k in range(2)]
    graphs, results = [torch.cuda.CUDAGraph() for _ in given], []
    with torch.no_grad():
        compiled(given[0])
        compiled(given[0])
        for graph, x in zip(graphs, given):
            with torch.cuda.graph(graph):
                results.append(compiled(x))
        streams = [torch.cuda.Stream() for _ in given]
        for _ in range(50):
            for graph, stream in zip(graphs, streams):
                with torch.cuda.stream(stream):
                    graph.replay()
            compiled(given[0])
        torch.cuda.synchronize()
        for x, result in zip(given, results):
            torch.testing.assert_close(result, norms(x))


def test_a_capture_of_the_programs_own():
    model = layers()
    compiled = graphed(model)
    x = cuda(32, 64)
    with torch.no_grad():
        for _ in range(6):
            compiled(x)
        graph = torch.cuda.CUDAGraph()
        before = replays()
        with torch.cuda.graph(graph):
            result = compiled(x) + 1
        assert replays() == before
        for k in range(3):
            x.copy_(cuda(32, 64, seed=k))
            graph.replay()
            torch.testing.assert_close(result, model(x) + 1)
        torch.testing.assert_close(compiled(x), model(x))
        assert replays() == before + 1


# ---------------------------------------------------------------------------- memory
def test_variants_share_memory():
    def wide(x, w):
        y = (x @ w).relu()
        return (y @ w.t()).sum(-1), (y + 1).softmax(-1).sum(0)

    compiled = graphed(lambda x, w: wide(x, w), recompile_limit=20)
    w = cuda(256, 4096)
    (lane,) = [Lanes.of_process().here(0)]
    sizes = []
    with torch.no_grad():
        for rows in (4096, 4000, 3904, 3808):
            fixed = preheat.compile(
                wide, mode="reduce-overhead", dynamic=False, options={"cache": False})
            for k in range(5):
                x = cuda(rows, 256, seed=k)
                mine, theirs = fixed(x, w), wide(x, w)
                torch.testing.assert_close(mine[0], theirs[0], rtol=1e-4, atol=1e-2)
                torch.testing.assert_close(mine[1], theirs[1], rtol=1e-4, atol=1e-2)
            sizes.append(sum(size for _, size in lane.memory()[1]))
            compiled.kept = (*getattr(compiled, "kept", ()), fixed)
    assert 4096 * 4096 * 4 <= sizes[0] and sizes[-1] <= sizes[0] * 1.25 + (24 << 20)


def test_memory_is_bounded(told):
    model = layers()
    compiled = graphed(model, graph_bytes=1 << 10)
    with torch.no_grad():
        before = replays()
        for k in range(6):
            x = cuda(512, 64, seed=k)
            torch.testing.assert_close(compiled(x), model(x))
    assert replays() == before and any("graph_bytes" in why for why in reasons(told))


def test_out_of_memory_in_a_replay():
    def large(x):
        return ((x + 1).exp() * 2).expand(8, *x.shape).contiguous(), x.sum(0)

    compiled = graphed(large)
    x = cuda(256, 1024, 64)
    with torch.no_grad():
        for _ in range(6):
            compiled(x)
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        used = torch.cuda.memory_reserved() + (128 << 20)
        torch.cuda.set_per_process_memory_fraction(used / total)
        try:
            with pytest.raises(torch.cuda.OutOfMemoryError):
                compiled(x)
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        torch.testing.assert_close(compiled(x)[0], large(x)[0])


def test_a_reset_gives_memory_back():
    model = layers(2, 2048)
    compiled = graphed(model)
    with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(6):
            compiled(cuda(256, 2048))
        lane = Lanes.of_process().here(0)
        assert lane.memory()[1]
        preheat.reset()
        assert not lane.memory()[1]
        x = cuda(256, 2048)
        for _ in range(6):
            torch.testing.assert_close(compiled(x), model(x))
        assert lane.memory()[1]


# ---------------------------------------------------------------------------- ahead of time, training
def test_warmup_records():
    model = layers()
    compiled = graphed(model)
    examples = [(cuda(rows, 64),) for rows in (8, 16)]
    with torch.no_grad():
        preheat.warmup(compiled, examples)
        preheat.seal(compiled)
        for k in range(3):
            for rows in (8, 16):
                x, before = cuda(rows, 64, seed=k), replays()
                torch.testing.assert_close(compiled(x), model(x))
                assert replays() == before + 1


def test_training_steps(told):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.LayerNorm(128), torch.nn.Linear(128, 8),
    ).cuda()
    twin = torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.LayerNorm(128), torch.nn.Linear(128, 8),
    ).cuda()
    twin.load_state_dict(model.state_dict())
    compiled = graphed(model)
    pairs = list(zip(model.parameters(), twin.parameters()))
    optimizers = [torch.optim.SGD(m.parameters(), 0.05) for m in (model, twin)]
    before = replays()
    for step in range(12):
        for part in range(2):  # gradients add up over two backwards
            x, y = cuda(32, 64, seed=step * 2 + part), cuda(32, 8, seed=99)
            loss, other = F.mse_loss(compiled(x), y), F.mse_loss(twin(x), y)
            torch.testing.assert_close(loss, other)
            loss.backward()
            other.backward()
        for mine, theirs in pairs:
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-5)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=step % 3 == 0)
    assert replays() - before >= 24 or any("training on a GPU" in why for why in reasons(told))


def test_gradients_that_are_held():
    torch.manual_seed(0)
    w = torch.nn.Parameter(cuda(64, 64))

    def loss_of(x):
        return ((x @ w).tanh() * x).softmax(-1).pow(2).sum()

    compiled = graphed(loss_of)
    held = []
    for k in range(10):
        x = cuda(16, 64, seed=k)
        (mine,) = torch.autograd.grad(compiled(x), w)
        (theirs,) = torch.autograd.grad(loss_of(x), w)
        held.append((mine, theirs))
    for mine, theirs in held:
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_modes_without_graphs():
    model = layers()
    with torch.no_grad():
        before = replays()
        for mode in (None, "max-autotune-no-cudagraphs"):
            compiled = preheat.compile(model, mode=mode, options={"cache": False})
            for _ in range(6):
                compiled(cuda(8, 64))
        assert replays() == before
