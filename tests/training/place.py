"""Where the programs of these tests run: PREHEAT_TEST_DEVICE, by default the CPU.

`make test-gpu` runs the same tests again with it set to "cuda".
"""

import os

import torch

DEVICE = os.environ.get("PREHEAT_TEST_DEVICE", "cpu")


def random_states() -> list[torch.Tensor]:
    """Where the generators stand that a program on the device draws from."""
    states = [torch.get_rng_state()]
    return states + ([torch.cuda.get_rng_state(DEVICE)] if DEVICE != "cpu" else [])
