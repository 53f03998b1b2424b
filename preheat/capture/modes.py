"""Modes of torch that are objects of C, as Python that the machine runs.

    with torch.inference_mode():       within inference mode: SameInferenceMode(True)

The guard object of C puts back, on leaving, all that was entered in its thread, our recorder included.
Source: c10/core/InferenceMode.h.
"""

from typing import Any

from preheat.bridge.ambient import AMBIENT, SETTABLE

is_grad_on, set_grad = AMBIENT["grad_enabled"], SETTABLE["grad_enabled"]
is_forward_grad_on, set_forward_grad = AMBIENT["forward_ad"], SETTABLE["forward_ad"]


class SameInferenceMode:
    """`torch.inference_mode(mode)` within the same mode: it sets whether gradients are recorded, both
    ways, and puts that back."""

    def __init__(self, mode: bool) -> None:
        self.mode = mode

    def __enter__(self) -> None:
        self.before = is_grad_on(), is_forward_grad_on()
        set_grad(not self.mode)
        set_forward_grad(not self.mode)

    def __exit__(self, *error: Any) -> None:
        set_grad(self.before[0])
        set_forward_grad(self.before[1])
