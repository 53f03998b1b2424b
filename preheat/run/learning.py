"""Learning: what a differentiable node runs until its backward has been seen.

    learning = Learning(training, lesson)
    learning(inputs)           runs under autograd in nested graphs; gradients are torch's own
    learning.is_ready          a backward has been recorded since: both halves can be compiled

`lesson()` gives the body (`differentiate.Lesson`), which only a process that learns loads.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from preheat.ir.training import Training
from preheat.run.autograd import Join
from preheat.run.interpreted import outside_autocast
from preheat.run.library import Fault

# Forwards whose backward never comes: then the forward is compiled alone.
_MOST_ALONE = 3


class Learning:
    """The executable of a differentiable body, op by op."""

    is_grad_off = False

    # is_compiled: an older form is compiled already, and this is to be compiled at once

    def __init__(self, training: Training, lesson: Callable[[], Any], is_compiled: bool = False):
        self.wiring, self.lesson, self._is_compiled = training.wiring, lesson, is_compiled
        self._joints, self._runs = len(training.joints), 0
        self.is_final = False  # there is no compiled form
        self._join = Join(self.wiring)
        self._context = outside_autocast()

    @property
    def is_ready(self) -> bool:
        """Whether a compiled form would be of use."""
        if self.is_final:
            return False
        if self._is_compiled or not self.wiring.classes or self._runs >= _MOST_ALONE:
            return True
        return self._runs > 0 and len(self.lesson().training.joints) > self._joints

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The outputs of the body, each with its history. Raises Fault if an op raises."""
        self._runs += 1
        try:
            with self._context():
                source = self.lesson().run(inputs)
        except Exception as error:
            raise Fault(f"the graph raised {error!r}") from error
        exits = self._join(source, dict(enumerate(inputs)), source.values)
        source.begin()
        return exits
