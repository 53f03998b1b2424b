"""Random generators that a body draws from without being given one: the CPU's and its device's.

    then = states("cuda:0")              where they stand: one tensor a generator
    with standing_at("cuda:0", then):    the numbers that followed are drawn once more
        ...                              afterwards the generators stand where they stood before

A GPU's state is a seed and an offset in the host's memory: reading it waits for nothing.
"""

import contextlib
from collections.abc import Iterator, Sequence

import torch

States = tuple[torch.Tensor, ...]


def generators(device: str) -> tuple[torch.Generator, ...]:
    """The default generators of the CPU and of `device`, which torch has initialised."""
    found = (torch.default_generator,)
    if device.startswith("cuda"):
        found += (torch.cuda.default_generators[torch.device(device).index or 0],)
    return found


def states(device: str) -> States:
    """Where the generators stand."""
    return tuple(generator.get_state() for generator in generators(device))


def set_states(device: str, then: Sequence[torch.Tensor]) -> None:
    """Puts the generators where they stood."""
    for generator, state in zip(generators(device), then, strict=True):
        generator.set_state(state)


@contextlib.contextmanager
def standing_at(device: str, then: States | None) -> Iterator[None]:
    """A block in which the generators go on from `then`; None: they are left alone."""
    if then is None:
        yield
        return
    now = states(device)
    set_states(device, then)
    try:
        yield
    finally:
        set_states(device, now)
