"""Values of tensors that reach a program without the recorder seeing it: never baked into a trace.

Every program is called with other values after its capture; a trace that had kept the first ones
would give them again.
"""

import sys

import pytest
import torch

import preheat
from same import Program, same_program


def with_other_values(fn, *calls, captured=None):
    """`fn` on the arguments of each of `calls`, twice, then again."""
    order = [*calls, *calls]

    def change(number):
        def put(program):
            program.args = tuple(a.clone() for a in order[number])

        return put

    def make():
        first = tuple(a.clone() for a in order[0])
        return Program(fn, first, between={k: change(k) for k in range(1, len(order))})

    same_program(make, calls=len(order), captured=captured)


ROWS = [(torch.tensor([[1.0, -2.0, 3.0]]),), (torch.tensor([[-4.0, 5.0, 6.0]]),)]
FIRST_TWO = {
    "tensor": lambda x: torch.tensor([x[0, 0], 1.0]),
    "tensor, nested": lambda x: torch.tensor([[x[0, 0]], [1.0]]),
    "as_tensor": lambda x: torch.as_tensor([x[0, 0], 1.0]),
    "asarray": lambda x: torch.asarray([x[0, 0], 1.0]),
    "new_tensor": lambda x: x.new_tensor([x[0, 0], 1.0]),
    "new": lambda x: x.new([x[0, 0], 1.0]),
    "keyword": lambda x: torch.tensor(data=[x[0, 0], 1.0]),
    "index of lists": lambda x: x[[[0]], [[(x[0, 0] > 0).int(), 1]]],
    "getitem by name": lambda x: x.__getitem__(([0], [(x[0, 0] > 0).int()])),
    "write by lists": lambda x: x.__setitem__(([0], [(x[0, 0] > 0).int()]), 9.0),
}


@pytest.mark.parametrize("name", FIRST_TWO)
def test_lists_that_hold_tensors_are_read_with_modes_off(name):
    with_other_values(FIRST_TWO[name], *ROWS, captured=False)


def test_lists_of_numbers_are_captured():
    with_other_values(lambda x: x[:, [0, 2]] + torch.tensor([1.0, 2.0]), *ROWS, captured=True)


def test_a_tensor_alone_is_an_op():
    with_other_values(lambda x: (torch.tensor(x), torch.as_tensor(x[0, 0])), *ROWS)


SECTIONS = [(torch.arange(6.0), torch.tensor([1, 2])), (torch.arange(6.0), torch.tensor([3, 4]))]


@pytest.mark.parametrize(
    "split",
    [
        torch.tensor_split,
        torch.Tensor.tensor_split,
        torch.ops.aten.tensor_split,
        torch.ops.aten.tensor_split.tensor_indices_or_sections,
    ],
)
def test_sections_in_a_tensor(split):
    with_other_values(lambda x, sections: split(x, sections), *SECTIONS, captured=False)


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_lengths_of_packed_sequences(kind):
    rnn = torch.nn.utils.rnn

    def program(x, lengths):
        packed = rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        outputs, _ = layer(packed)
        return rnn.pad_packed_sequence(outputs, batch_first=True)

    torch.manual_seed(0)
    layer, x = kind(3, 4, batch_first=True), torch.randn(3, 4, 3)
    with_other_values(
        program, (x, torch.tensor([4, 3, 1])), (x, torch.tensor([4, 2, 2])), captured=False
    )


_LIBRARY = torch.library.Library("preheat_values", "DEF")
_LIBRARY.define("largest(Tensor x) -> int")
_LIBRARY.impl("largest", lambda x: int(x.max()), "CPU")


def test_a_number_of_a_users_operator():
    with_other_values(lambda x: torch.ops.preheat_values.largest(x), *ROWS, captured=False)


def test_the_recursion_limit_is_set_on_every_call():
    before = sys.getrecursionlimit()

    def deeper(x):
        sys.setrecursionlimit(sys.getrecursionlimit() + 1)
        return x + 1

    try:
        with_other_values(deeper, *ROWS, captured=False)
        assert sys.getrecursionlimit() == before + 8  # four calls eager, four compiled
    finally:
        sys.setrecursionlimit(before)


def test_reversed_tuples_and_products_are_moved_through():
    def program(i):
        return torch.unravel_index(i, (3, 4, 5))

    with_other_values(
        program, (torch.tensor([7, 9]),), (torch.tensor([0, 59]),), captured=True
    )


def _written_through_a_view(x, y):
    y.t().mul_(2)
    return x + 0.5


def _written_through_a_chunk(x, y):
    for part in y.chunk(2):
        part.add_(1)
    return x * 1


def _written_by_out(x, y):
    torch.add(y[0], 1, out=y[1])
    return x - 1


@pytest.mark.parametrize(
    "fn", [_written_through_a_view, _written_through_a_chunk, _written_by_out]
)
def test_inputs_that_become_one_tensor_when_a_view_is_written(fn):
    def make():
        def put(x, y):
            def change(program):
                program.args = (x, y)

            return change

        both, base = torch.randn(4, 4), torch.randn(6, 4)
        return Program(
            fn,
            (torch.randn(4, 4), torch.randn(4, 4)),
            watch=base,
            between={
                1: put(both, both),
                2: put(base[:4], base[2:]),
                3: put(torch.ones(4, 4), torch.ones(4, 4)),
                4: put(both, both.t()),
            },
        )

    same_program(make, calls=6)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.lerp_(x.t(), 0.3),
        lambda x: x.addcmul_(x.t(), x),
        lambda x: x[1:].lerp_(x[:-1], 0.5),
        lambda x: torch._foreach_add_([x], [x.t()]),
    ],
)
def test_an_op_that_reads_what_it_writes_in_another_order(fn):
    def make():
        return Program(lambda x: (fn(x), x)[1], (torch.arange(16.0).reshape(4, 4),))

    same_program(make, calls=3)


def test_an_op_that_reads_what_it_writes_in_place_is_captured():
    with_other_values(lambda x: (x.mul_(x), x.add_(x.detach()), x)[2], *ROWS, captured=True)


def test_columns_of_one_matrix_are_apart():
    with_other_values(
        lambda x: (x[:, :1].mul_(x[:, 1:2]), x[:, ::2].add_(x[:, 1:2]), x)[2], *ROWS, captured=True
    )


def test_an_empty_tuple_from_outside_is_no_other_one():
    def function(x, given):
        return x * 2, ()

    compiled = preheat.compile(function, options={"cache": False})
    for given in ((), (1, 2), (), (3,)):
        assert compiled(torch.ones(2), given)[1] == ()
