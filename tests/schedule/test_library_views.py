"""Views that the library makes, among kernels that take memory again, writes and outputs.

A random program holds a few tensors, some from outside. Each step makes a view of one, computes
with one, draws random numbers (library calls between kernels), writes to one in place or clones it;
some of them are returned. Compared with eager on both backends: values, strides, aliasing, and what
was returned earlier.
"""

import random
from collections.abc import Callable

import pytest
import torch

from preheat.base.events import bus
from preheat.bridge.ops import exists
from preheat.schedule.library import COPIES
from preheat.transform.views import INVERSES, LAZY
from tests.same import Program, same, same_program

Step = Callable[[torch.Tensor], torch.Tensor]
PROGRAMS = 40


def _as_strided(x: torch.Tensor) -> torch.Tensor:
    return torch.as_strided(x, (4, 4), (1, 4)) if x.is_contiguous() and x.numel() >= 16 else x.mT


def _complex(x: torch.Tensor) -> torch.Tensor:
    if x.is_complex():
        return torch.view_as_real(x).flatten(-2)
    return torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) if x.shape[-1] % 2 == 0 else x


VIEWS: dict[str, Step] = {
    "as_strided": _as_strided,
    "overlapping": lambda x: x.as_strided((3, 2, 2), (2, 3, 1)) if x.is_contiguous() else x,
    "unfold": lambda x: x.unfold(0, 2, 1)[..., 1] if x.shape[0] > 1 else x,
    "windows": lambda x: x.unfold(-1, 2, 2)[..., 0] if x.shape[-1] > 2 else x,
    "diagonal": lambda x: x.diagonal(0, -2, -1).unsqueeze(0),
    "below": lambda x: x.diagonal(-1, -2, -1).unsqueeze(-1),
    "complex": _complex,
    "real": lambda x: x.real if x.is_complex() else x[..., :2],
    "imag": lambda x: x.imag if x.is_complex() else x[1:],
    "conj": lambda x: x.conj(),
    "double": lambda x: x.mT.contiguous().view(torch.float64).float(),
    "bits": lambda x: x.view(torch.int32 if x.dtype == torch.float32 else x.dtype) + 1.0,
    "transpose": lambda x: x.mT,
    "expand": lambda x: x[:, :1].expand(x.shape[0], 4),
    "select": lambda x: x[0].unsqueeze(0),
    "reshape": lambda x: x.reshape(1, -1),
    "contiguous": lambda x: x.contiguous(),
    "to": lambda x: x.to(x.dtype),
    "dropout": lambda x: torch.nn.functional.dropout(x, 0.5, training=False),
    "expand_as": lambda x: x.expand_as(x),
}
PURE: dict[str, Step] = {
    "double": lambda x: x * 2,
    "less": lambda x: x - 0.5,
    "drop": lambda x: x + torch.rand(x.shape),
    "sum": lambda x: x + x.sum(-1, keepdim=True),
    "sorted": lambda x: x.abs().sort(-1)[0],
    "clone": lambda x: x.clone(),
    "product": lambda x: x @ x.mH,
}
WRITES: dict[str, Step] = {
    "add_": lambda x: x.add_(1),
    "mul_": lambda x: x.mul_(0.5),
    "copy_": lambda x: x.copy_(x.clone() * 3),
    "row": lambda x: x[0].zero_(),
}


def _program(seed: int) -> Callable[[], Program]:
    """The steps are fixed by the seed; a step that eager refuses for its operand is left out."""
    draw = random.Random(seed)
    steps = []
    for _ in range(draw.randint(3, 7)):
        table = draw.choices((VIEWS, PURE, WRITES), (5, 4, 1))[0]
        steps.append((table[draw.choice(sorted(table))], draw.random()))
    kept = {draw.randrange(len(steps) + 2) for _ in range(draw.randint(1, 3))}

    def take(values: list[torch.Tensor], at: float) -> torch.Tensor:
        return values[-1 - int(at * at * len(values))]

    values, possible = list(_inputs()), []
    for step, at in steps:
        try:
            with torch.no_grad():
                values.append(step(take(values, at)))
        except (RuntimeError, IndexError):
            continue
        possible.append((step, at))

    def call(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = [x, y]
        for step, at in possible:
            values.append(step(take(values, at)))
        return (*(v for k, v in enumerate(values) if k in kept and k > 1), values[-1] * 1)

    return lambda: Program(call, _inputs())


def _inputs() -> tuple[torch.Tensor, torch.Tensor]:
    """One from the middle of its storage, both small enough for every view."""
    return torch.arange(40.0)[4:20].reshape(4, 4), torch.linspace(-1, 1, 16).reshape(4, 4)


@pytest.mark.parametrize("seed", range(PROGRAMS))
@pytest.mark.parametrize("backend", ["preheat", "eager"])
def test_random_programs(seed, backend):
    same_program(_program(seed), settings={"backend": backend})


KINDS = {
    "as_strided of a value that a kernel made": lambda x: x.add(1).as_strided((4, 4), (1, 4)),
    "as_strided of an input inside its storage": lambda x: x.as_strided((2, 2), (1, 2)) * 1,
    "as_strided with overlap": lambda x: x.mul(2).as_strided((3, 3), (2, 1), 5).sum(-1),
    "unfold": lambda x: x.mul(2).unfold(0, 3, 1).sum(-1),
    "unfold as the result": lambda x: x.mul(2).unfold(0, 3, 1),
    "unfold with gaps": lambda x: x.mul(2).unfold(1, 1, 2).sum(-1) + x.mul(3).unfold(1, 2, 3)[0],
    "unfold without gaps": lambda x: x.mul(2).unfold(0, 2, 2).sum(1),
    "diagonal": lambda x: x.mul(2).diagonal(-1).contiguous(),
    "view as a wider dtype": lambda x: x.mul(2).view(torch.float64),
    "view as a narrower dtype": lambda x: x.mul(2).view(torch.int16) + 1,
    "view_as_complex": lambda x: torch.view_as_complex(x.mul(2).reshape(4, 2, 2)),
    "view_as_complex, expanded": lambda x: torch.view_as_complex(x.mul(2).reshape(4, 2, 2))[
        :, :1
    ].expand(4, 5),
    "view_as_complex of what a product made": lambda x: torch.view_as_complex(
        (x @ x).reshape(4, 2, 2)
    ).abs(),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_memory_under_a_view_is_not_taken_again(kind):
    def program(x):
        view = KINDS[kind](x)
        return view, torch.nn.functional.dropout(x, 0.5) + view.real.sum(), view.abs() * 2

    same(program, torch.arange(40.0)[4:20].reshape(4, 4), captured=True)


def test_the_program_that_led_here():
    def program(x, v):
        return torch.as_strided(x - v, (4, 4), (1, 4)) + torch.nn.functional.dropout(x, 0.5)

    same(program, torch.arange(16.0).reshape(4, 4), torch.arange(4.0), captured=True)


def test_a_view_of_an_input_that_is_written_before_the_view_is_last_read():
    def program(x):
        view = torch.view_as_complex(x.view(4, 2, 2))
        before = view * 2
        x.add_(1)
        return before, view * 3

    same(program, torch.arange(16.0).reshape(4, 4))


def test_a_write_through_as_strided_of_an_input_inside_its_storage():
    def program(x):
        x.as_strided((2, 3), (5, 1)).add_(100)
        y = x.mul(2)
        y.as_strided((4, 3), (4, 1), 1).mul_(3)
        return y, y.as_strided((2, 2), (1, 4), 2).zero_()

    same(program, torch.arange(40.0)[4:20].reshape(4, 4), captured=True)


def test_clones_of_views_of_one_value_share_no_memory():
    def program(z):
        w = z * 2
        real, again = torch.view_as_real(w), torch.view_as_real(w)
        return real.clone(), again.clone(), torch.view_as_real(z).clone()

    same(program, torch.randn(4, 3, dtype=torch.complex64), captured=True)


def test_every_view_that_stays_whole_has_a_row():
    assert set(INVERSES) - set(LAZY.values()) == set(COPIES)
    assert all(exists(name) for name in COPIES.values() if name)


def test_a_view_for_the_library_has_eagers_strides_on_axes_of_one_element():
    """One token against a cache, two heads of queries a head of keys: the batch of one had another
    stride than eager's, so had the result, and each call ran eager."""
    def step(x, keys, mask):
        query = (x * 2).view(1, 1, 4, 16).transpose(1, 2)
        return torch.nn.functional.scaled_dot_product_attention(
            query, keys, keys, attn_mask=mask, enable_gqa=True)

    seen = []
    stop = bus.subscribe(seen.append, {"fallback"})
    try:
        with torch.no_grad():
            same(step, torch.randn(1, 64), torch.randn(1, 2, 10, 16), torch.zeros(1, 1, 1, 10))
    finally:
        stop()
    assert not seen, seen
