"""Two copies of one optimizer over equal parameters, one of them compiled, that take the same steps.

Kernels fuse what eager rounds in between, so tensors are compared at a few ulp of their scale;
numbers exactly.
"""

import torch

import preheat

SIZES = ((4, 3), (5,), (2, 3, 2), ())
IMPLEMENTATIONS = {"forloop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}


class Twins:
    """Two optimizers over equal parameters: `make(params)`; the second one is compiled. Tensors are compared with
    `rtol`."""

    def __init__(self, make, sizes=SIZES, compiled=lambda optimizer: optimizer.step, rtol=1e-6):
        self.rtol = rtol
        self.params = []
        for _ in range(2):
            torch.manual_seed(3)
            self.params.append([torch.nn.Parameter(torch.randn(size)) for size in sizes])
        self.optimizers = [make(params) for params in self.params]
        self.calls = [
            compiled(self.optimizers[0]),
            preheat.compile(compiled(self.optimizers[1]), options={"cache": False})]
        self.gradients = torch.Generator().manual_seed(5)

    def set_gradients(self, frozen=()):
        for place, pair in enumerate(zip(*self.params)):
            gradient = torch.randn(pair[0].shape, generator=self.gradients)
            for param in pair:
                param.grad = None if place in frozen else gradient.clone()

    def step(self, *args, frozen=()):
        self.set_gradients(frozen)
        first, second = (call(*args) for call in self.calls)
        self.compare()
        return first, second

    def each(self, action):
        """The same change of both."""
        for optimizer, params in zip(self.optimizers, self.params):
            action(optimizer, params)

    def compare(self):
        states = [
            (params, [p.grad for p in params], optimizer.state_dict())
            for optimizer, params in zip(self.optimizers, self.params)]
        alike(*states, rtol=self.rtol)


def alike(expected, found, at="", rtol=1e-6):
    """The same structure, numbers and tensors; of tensors, what fusion may round differently."""
    assert type(expected) is type(found), at
    if isinstance(expected, torch.Tensor):
        assert (expected.dtype, expected.shape) == (found.dtype, found.shape), at
        assert expected.requires_grad == found.requires_grad, at
        largest = expected.detach().abs().nan_to_num(0, 0, 0).max() if expected.numel() else 0
        torch.testing.assert_close(
            found, expected, rtol=rtol, atol=2e-6 * max(float(largest), 1e-6), equal_nan=True,
            msg=lambda m: f"{at}: {m}")
    elif isinstance(expected, dict):
        assert list(expected) == list(found), at
        for key in expected:
            alike(expected[key], found[key], f"{at}[{key!r}]", rtol)
    elif isinstance(expected, (list, tuple)):
        assert len(expected) == len(found), at
        for place, pair in enumerate(zip(expected, found)):
            alike(*pair, f"{at}[{place}]", rtol)
    else:
        assert expected == found, at


def captures():
    return preheat.counters()["captures"] + preheat.counters()["interpreted"]


def settled(twins, steps=3, **arguments):
    """After a few steps, others are captured no more."""
    for _ in range(steps):
        twins.step(**arguments)
    before = captures()
    for _ in range(3):
        twins.step(**arguments)
    assert captures() == before


def adamw(params, **arguments):
    return torch.optim.AdamW(params, lr=1e-2, **arguments)
