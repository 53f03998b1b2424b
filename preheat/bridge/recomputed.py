"""Recomputed: what autograd saves inside a region is not kept, but computed again when it is asked for.

    with again.saving():  h = torch.tanh(x @ w)        the node of tanh has saved the place 2 of region 1
    backward                                           x @ w, tanh of it: place 2; the node goes on

As `torch.utils.checkpoint` does it, for the ops of a body that runs under autograd (`capture/joint.py`): the
region holds the tensors from outside that its ops read. The first of its nodes that needs what it has
saved runs the ops once more, as far as something of them was saved; each tensor goes with its use.
Requires ops that give the same again. Guarantees that a change to what is held is an error.
"""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from preheat.bridge.ambient import outside_of_transforms
from preheat.bridge.history import is_looking, require_version
from preheat.bridge.redraw import is_draw
from preheat.bridge.regions import again
from preheat.ir.graph import Ref

Compute = Callable[["Recomputed", Callable[[], dict[int, torch.Tensor]]], None]


class _Enough(Exception):
    """Everything that was saved has been computed again."""


class Recomputed:
    """Region `number` of one run.

    compute(self, operands)   runs its ops, given how to make the values from outside
    """

    def __init__(self, number: int, compute: Compute):
        self.number, self._compute = number, compute
        self._outside: dict[int, tuple[torch.Tensor, int]] = {}  # by value: the tensor, its version
        self._made: set[int] = set()
        self._count = 0  # tensors that were saved
        self._found: dict[int, torch.Tensor] = {}  # by place: computed again and not taken yet
        self.standing: torch.Tensor | None = None  # the generator before its draws, if it draws again
        self.drawn: dict[int, Any] = {}  # else, by op, what it drew

    def meet(self, reads: list[int], results: tuple[int, ...], values: dict[int, torch.Tensor]) -> None:
        """The next op reads and gives these values."""
        for value in reads:
            if value not in self._made and value not in self._outside:
                self._outside[value] = values[value], values[value]._version
        self._made.update(results)

    def saving(self) -> contextlib.AbstractContextManager:
        """A block in which autograd saves places of this region."""
        return torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def let_go(self) -> None:
        """A backward is over: what it did not take is of no use."""
        self._found.clear()

    def _pack(self, tensor: torch.Tensor) -> int:
        self._count += 1
        return self._count - 1

    def _unpack(self, place: int) -> torch.Tensor:
        if is_looking():
            raise RuntimeError("what a region computes again is not looked at")
        if place not in self._found:
            outside_of_transforms(self._run, ())
        return self._found.pop(place)

    def _run(self) -> None:
        found: list[torch.Tensor] = []

        def take(tensor: torch.Tensor) -> torch.Tensor:
            found.append(tensor.detach() if tensor.requires_grad else tensor)
            if len(found) == self._count:
                raise _Enough
            return tensor

        with contextlib.suppress(_Enough), torch.autograd.graph.saved_tensors_hooks(take, _itself):
            self._compute(self, self._operands)
        self._found.update(enumerate(found))

    def _operands(self) -> dict[int, torch.Tensor]:
        """What the ops read from outside, without its history."""
        operands: dict[int, torch.Tensor] = {}
        for value, (tensor, version) in self._outside.items():
            require_version(tensor, version)
            operands[value] = tensor.detach().requires_grad_() if tensor.requires_grad else tensor
        return operands


def redrawn(recorder: Any, first: int, standing: torch.Tensor) -> None:
    """Of the ops recorded since `first`, those that draw become what draws the same from `standing` on."""
    builder, state = recorder.builder, recorder.value_of(standing)
    for place in range(first, len(builder.ops)):
        op = builder.ops[place]
        if is_draw(op):
            then, type = builder.fresh(), builder.type_of[state]
            builder.type_of[then] = type
            builder.ops[place] = replace(
                op, name=again(op.name), args=(Ref(state), *op.args), results=(*op.results, then),
                types=(*op.types, type), aliases=(*op.aliases, -1))
            recorder.root[then] = state = then


def _itself(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
