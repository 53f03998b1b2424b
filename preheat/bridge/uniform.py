"""The operator `preheat.uniform`: random numbers as a function of a seed, for any torch device.

    preheat.uniform(seed, like, stream)   ->   float32 numbers in [0, 1), as many as `like` has

Number k is the upper 24 bits of word k % 4 of Philox4x32-10 at the counter (k // 4, stream), under the
seed as key. So a number is computed where it is needed, in any order, and again from the same seed.
Graphs as recorded hold it, and what runs op by op calls it. Source: Salmon, Moraes, Dror, Shaw:
Parallel random numbers: as easy as 1, 2, 3 (2011).
"""

import math
from collections.abc import Sequence

import torch

from preheat.bridge.operators import Operator
from preheat.ir.philox import KEY_STEPS, MULTIPLIERS, ROUNDS

SCALE = 2.0 ** -24
_LOW = 0xFFFFFFFF


def words(seed: torch.Tensor, group: torch.Tensor, stream: int) -> torch.Tensor:
    """The words of each counter: int64[*group, 4] from 0 to 2**32 - 1. seed: int64[]; group: int64"""
    state = [group & _LOW, group >> 32, torch.full_like(group, stream), torch.zeros_like(group)]
    key = [seed & _LOW, seed >> 32 & _LOW]
    for _ in range(ROUNDS):
        # a product of 64 bits wraps, which leaves its bits as they are
        first, third = state[0] * MULTIPLIERS[0], state[2] * MULTIPLIERS[1]
        state = [
            (third >> 32 & _LOW) ^ state[1] ^ key[0], third & _LOW,
            (first >> 32 & _LOW) ^ state[3] ^ key[1], first & _LOW]
        key = [(part + step) & _LOW for part, step in zip(key, KEY_STEPS)]
    return torch.stack(state, -1)


def numbers(seed: torch.Tensor, sizes: Sequence[int], stream: int) -> torch.Tensor:
    """float32[*sizes] in [0, 1), row-major. seed: int64[]; stream: 0 to 2**32 - 1"""
    count = math.prod(sizes)
    found = words(seed, torch.arange(-(-count // 4), device=seed.device), stream)
    return ((found.reshape(-1)[:count] >> 8).float() * SCALE).reshape(tuple(sizes))


def uniform(seed: torch.Tensor, like: torch.Tensor, stream: int) -> torch.Tensor:
    """The operator: `numbers` in the sizes of `like`, whose elements are not read."""
    return numbers(seed, like.shape, stream)


OPERATORS = {
    "preheat.uniform.default": lambda: Operator("uniform(Tensor seed, Tensor like, int stream) -> Tensor", uniform)}
