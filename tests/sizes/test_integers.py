"""Ints that change as arguments of ops: few captures for all values, results and errors of eager."""

import pytest
import torch
import torch.nn.functional as F

import preheat

torch.manual_seed(0)
X = torch.randn(16, 16)
LINE = torch.arange(48.0)
IMAGE, SIGNAL = torch.randn(2, 4, 32, 32), torch.randn(2, 4, 64)
FILTERS, TAPS = torch.randn(4, 4, 3, 3), torch.randn(4, 4, 3)
INDEX = torch.arange(16) % 2
VALUES = [3, 5, 2, 7, 4, 9, 6, 8, 11, 10, 12, 1]
BELOW = [3, 5, -2, 7, 0, -9, 6, 15, -15, 16, -16, 20, -20, 1]


def scaled(x, made):
    """`made`, which is computed with `x`, where a gradient may go through it."""
    return made * x[0, 0]


# each with the most captures of VALUES
FACTORIES = {
    "linspace": (lambda x, n: scaled(x, torch.linspace(0, 1, n)), 3),
    "linspace of floats": (lambda x, n: scaled(x, torch.linspace(-1.5, 2.0, steps=n, dtype=torch.float64)), 3),
    "logspace": (lambda x, n: scaled(x, torch.logspace(0, 1, steps=n, base=2.0)), 3),
    "triangle": (lambda x, n: torch.triu_indices(16, 16, offset=n) * 2, 4),
    "square triangle": (lambda x, n: torch.tril_indices(n, n, -1) * 2, 4),
    "full": (lambda x, n: torch.full((n,), n), 3), "eye": (lambda x, n: scaled(x, torch.eye(n, 5)), 3),
    "arange": (lambda x, n: scaled(x, torch.arange(n, 40)), 3),
    "new tensor": (lambda x, n: x * x.new_tensor([n, 2]).sum() + x.new_tensor(n), 3),
    "new full": (lambda x, n: x.new_full((n, 2), n), 3), "window": (lambda x, n: scaled(x, torch.hann_window(n)), 3),
    "one hot": (lambda x, n: scaled(x, F.one_hot(INDEX, n)), 4),
}
VIEWS = {
    "row": (lambda x, n: x[n] * 2, 3), "narrow": (lambda x, n: x.narrow(1, n, 3) * 2, 3),
    "select": (lambda x, n: x.select(1, n) * 2, 3), "expand": (lambda x, n: x[:, :, None].expand(-1, -1, n) * 2, 3),
    "view": (lambda x, n: scaled(x, LINE.repeat(n)).view(n, -1) * 2, 3),
    "unflatten": (lambda x, n: scaled(x, LINE.repeat(n)).unflatten(0, (n, -1)) * 2, 3),
    "repeat": (lambda x, n: x.repeat(n, 1) * 2, 3), "repeat interleave": (lambda x, n: x.repeat_interleave(n, 0) * 2, 3),
    "roll": (lambda x, n: torch.roll(x, (n, -n), (0, 1)) * 2, 3), "quarter turns": (lambda x, n: torch.rot90(x, n) * 2, 5),
    "split": (lambda x, n: x.split([n, 16 - n])[1] * 2, 3), "parts": (lambda x, n: [t * 2 for t in x.split(n)], 7),
    "top": (lambda x, n: x.topk(n)[0] * 2, 3), "triangle": (lambda x, n: x.tril(n) * 2 + x.triu(n), 3),
    "sequences": (lambda x, n: torch.nn.utils.rnn.pad_sequence([x[:n], x[:5], x[:1]], True, 0.5) * 2, 4),
}
IMAGES = {
    "padding": (lambda x, n: F.conv2d(scaled(x, IMAGE), FILTERS, padding=n), 3),
    "padding of one axis": (lambda x, n: F.conv2d(scaled(x, IMAGE), FILTERS, padding=(n, 1)), 3),
    "stride": (lambda x, n: F.conv2d(scaled(x, IMAGE), FILTERS, stride=n), 3),
    "dilation": (lambda x, n: F.conv2d(scaled(x, IMAGE), FILTERS, dilation=n), 3),
    "transposed": (lambda x, n: F.conv_transpose2d(scaled(x, IMAGE), FILTERS, stride=n), 3),
    "padding of a signal": (lambda x, n: F.conv1d(scaled(x, SIGNAL), TAPS, padding=n), 3),
    "pad": (lambda x, n: F.pad(x, (n, 1, 0, n)) * 2, 3),
    "pad by reflection": (lambda x, n: F.pad(x[None], (n, n), mode="reflect") * 2, 3),
    **{f"interpolate {mode}": (lambda x, n, mode=mode: F.interpolate(scaled(x, IMAGE), size=(n, 7), mode=mode), 3)
       for mode in ("nearest", "bilinear", "bicubic", "area")},
    "interpolate a signal": (lambda x, n: F.interpolate(scaled(x, SIGNAL), size=n, mode="linear"), 3),
    "adaptive": (lambda x, n: F.adaptive_avg_pool2d(scaled(x, IMAGE), (n, n + 1)), 3),
}
# of these autograd saves a plain int: each value is captured where a gradient goes through them
WINDOWS = {
    "largest": lambda x, n: F.max_pool2d(scaled(x, IMAGE), n, 2), "largest by stride": lambda x, n: F.max_pool2d(scaled(x, IMAGE), 3, n),
    "largest, padded": lambda x, n: F.max_pool2d(scaled(x, IMAGE), 25, 1, n), "ceiled": lambda x, n: F.max_pool2d(scaled(x, IMAGE), n, ceil_mode=True),
    "mean": lambda x, n: F.avg_pool2d(scaled(x, IMAGE), (n, 3), 2), "largest of parts": lambda x, n: F.adaptive_max_pool2d(scaled(x, IMAGE), n),
    "windows": lambda x, n: F.unfold(scaled(x, IMAGE), (n, 2), padding=1), "histogram": lambda x, n: torch.histc(x.detach(), n),
    "rounded": lambda x, n: torch.round(x, decimals=n), "polygamma": lambda x, n: torch.polygamma(n, x.abs() + 1),
    "factor": lambda x, n: F.interpolate(scaled(x, IMAGE), scale_factor=n), "factor of a signal": lambda x, n: F.interpolate(
        scaled(x, SIGNAL), scale_factor=n / 7, mode="linear"),
    "factors": lambda x, n: F.interpolate(scaled(x, IMAGE), scale_factor=(n / 3, 2), mode="bilinear", align_corners=False),
    "factor, exact": lambda x, n: F.interpolate(scaled(x, IMAGE), scale_factor=0.3 * n, mode="nearest-exact"),
    "windows of a line": lambda x, n: x.unfold(1, n, 1) * 2, "steps of windows": lambda x, n: x.unfold(1, 4, n) * 2,
}
DIAGONALS = {
    "diagonal": lambda x, n: x.diagonal(n) * 2, "of other axes": lambda x, n: torch.diagonal(x.view(4, 16, 4), offset=n, dim1=2, dim2=0) * 2,
    "copied": lambda x, n: torch.diag(x, n), "made": lambda x, n: torch.diag(x[0], n), "embedded": lambda x, n: torch.diag_embed(x, n) * 2,
    "strides": lambda x, n: x.diagonal(n).stride(), "triangle": lambda x, n: torch.tril(x, n) * 2,
}


def outcome(call, n, has_grad):
    x = X.clone().requires_grad_(has_grad)
    with torch.set_grad_enabled(has_grad):
        try:
            made = call(x, n)
        except Exception as error:
            return type(error), str(error)
        tensors = [t for t in (made if isinstance(made, (list, tuple)) else [made]) if isinstance(t, torch.Tensor)]
        if any(t.requires_grad for t in tensors):
            sum(t.sin().sum() for t in tensors).backward()
    return made, x.grad


def agree(call, values, has_grad):
    """The captures of `call` for `values`, whose results are eager's."""
    compiled, before = preheat.compile(call, options={"cache": False, "recompile_limit": 40}), preheat.counters()["captures"]
    for n in values:
        ours, theirs = outcome(compiled, n, has_grad), outcome(call, n, has_grad)
        assert type(ours[0]) is type(theirs[0]), (n, ours, theirs)
        if isinstance(theirs[0], type):
            assert ours == theirs, n
            continue
        torch.testing.assert_close(ours[0], theirs[0], msg=lambda text: f"{n}: {text}")
        torch.testing.assert_close(ours[1], theirs[1], rtol=1e-4, atol=1e-4)  # sums of many
        for one, other in zip(*(made if isinstance(made, list) else [made] for made in (ours[0], theirs[0]))):
            assert not isinstance(one, torch.Tensor) or one.stride() == other.stride(), n
    return preheat.counters()["captures"] - before


@pytest.fixture(autouse=True)
def strict(monkeypatch):
    monkeypatch.setenv("PREHEAT_STRICT", "1")


TABLES = {"factory": FACTORIES, "view": VIEWS, "image": IMAGES}


@pytest.mark.parametrize("has_grad", [False, True])
@pytest.mark.parametrize("kind, name", [(kind, name) for kind, table in TABLES.items() for name in table])
def test_few_captures_serve_every_value(kind, name, has_grad):
    call, most = TABLES[kind][name]
    found = agree(call, VALUES, has_grad)
    assert found <= most, found


@pytest.mark.parametrize("name", WINDOWS)
def test_few_captures_serve_every_window(name):
    assert agree(WINDOWS[name], VALUES, False) <= 4


@pytest.mark.filterwarnings("ignore:preheat.*variants exist")
@pytest.mark.parametrize("name", ["largest", "mean", "rounded", "windows of a line", "factors"])
def test_windows_with_gradients_are_eagers(name):
    agree(WINDOWS[name], VALUES, True)


@pytest.mark.parametrize("has_grad", [False, True])
@pytest.mark.parametrize("name", DIAGONALS)
def test_diagonals_above_below_and_beyond(name, has_grad):
    assert agree(DIAGONALS[name], BELOW, has_grad) <= 14  # beyond the tensor each is one


@pytest.mark.filterwarnings("ignore:preheat.*variants exist")
@pytest.mark.parametrize("name", ["padding", "stride", "dilation", "pad"])
def test_what_eager_refuses_is_refused(name):
    agree(IMAGES[name][0], [3, 5, 2, 0, -1, 40, 4], False)


@pytest.mark.filterwarnings("ignore:preheat.*variants exist")
@pytest.mark.parametrize("name", ["largest", "largest by stride", "largest, padded", "mean", "windows", "steps of windows", "histogram", "factor", "factors"])
def test_windows_that_eager_refuses(name):
    agree(WINDOWS[name], [3, 5, 2, 0, -1, 40, 13, 4], False)


@pytest.mark.filterwarnings("ignore:preheat.*variants exist")
@pytest.mark.parametrize("name", ["linspace", "logspace", "triangle", "one hot", "new tensor"])
def test_factories_of_few(name):
    agree(FACTORIES[name][0], [3, 5, 2, 0, 1, -1, -20, 40, 4], False)


def test_the_view_of_a_diagonal_shares_memory():
    def step(x, n):
        x.diagonal(n).add_(1)
        return x * 2

    compiled = preheat.compile(step, options={"cache": False})
    for n in BELOW:
        ours, theirs = X.clone(), X.clone()
        assert torch.equal(compiled(ours, n), step(theirs, n)) and torch.equal(ours, theirs), n
