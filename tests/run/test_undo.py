"""A compiled call that meets an error starts over as plain Python and finds everything as it was."""

import pytest
import torch

from same import Program, same_program

GOOD, BAD = torch.eye(3), -torch.eye(3)


def _random_then_library(x, i):
    return torch.rand(3) + torch.linalg.cholesky(x)


def _random_then_index(x, i):
    return x[i] + torch.rand(3)


def _random_then_division(x, i):
    return i // (x.sum().long() - 3 + i) + torch.rand(1)


def _write_then_caught(x, i):
    x.add_(1).sub_(1)
    noise = torch.rand(3)
    try:
        return torch.linalg.cholesky(x) + noise
    except RuntimeError:
        return x * 2 + torch.rand(3)


def _dropout_then_index(x, i):
    return torch.nn.functional.dropout(x, 0.5)[i] + torch.rand(3)


@pytest.mark.parametrize(
    "fn",
    [
        _random_then_library,
        _random_then_index,
        _random_then_division,
        _write_then_caught,
        _dropout_then_index,
    ],
)
def test_errors_after_random_numbers_and_writes(fn):
    def make():
        def put(x, i):
            def change(program):
                program.args = (x.clone(), torch.tensor([i]))

            return change

        return Program(
            fn,
            (GOOD.clone(), torch.tensor([1])),
            between={2: put(BAD, 1), 3: put(GOOD, 7), 4: put(GOOD, 2)},
        )

    same_program(make, calls=6)


_LIBRARY = torch.library.Library("preheat_undo", "DEF")
_LIBRARY.define("sees(Tensor x) -> Tensor")
SEEN: list[list[float]] = []


def _sees(x):
    SEEN.append(x.tolist())
    return x.clone()


_LIBRARY.impl("sees", _sees, "CPU")


def test_a_users_operator_never_sees_what_a_faulty_kernel_left():
    def make():
        SEEN.clear()

        def bad(program):
            program.args = (torch.ones(3), torch.tensor([9]))

        return Program(
            lambda x, i: torch.ops.preheat_undo.sees(x[i] * 2),
            (torch.ones(3), torch.tensor([1])),
            watch=SEEN,
            between={2: bad},
        )

    same_program(make, calls=3)
