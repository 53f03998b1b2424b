"""Steps of optimizers over hundreds of parameters on a GPU, as rows of `bench.gpu`."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from bench.gpu_models import Row

COUNT = 200
ADAM_WORDS = 7  # an element: four read, three written


def sizes(count: int = COUNT) -> list[int]:
    """Elements of each parameter, 64 to 65536, more of them large: those of `bench.models`' AdamW."""
    return [int(64 * 1024 ** ((k / (count - 1)) ** 0.4)) for k in range(count)]


def parameters() -> list[torch.nn.Parameter]:
    made = [torch.nn.Parameter(torch.randn(size, device="cuda")) for size in sizes()]
    for parameter in made:
        parameter.grad = torch.randn_like(parameter)
    return made


def step(kind: Callable = torch.optim.AdamW, clip: float = 0.0, **arguments: Any) -> Callable[[], None]:
    """A step over new parameters, which all calls share."""
    params = parameters()
    optimizer = kind(params, **arguments)
    if not clip:
        return optimizer.step

    def clipped() -> None:
        torch.nn.utils.clip_grad_norm_(params, clip)
        optimizer.step()

    return clipped


def optimizers() -> Iterator[Row]:
    moved = ADAM_WORDS * 4 * sum(sizes())

    def row(name: str, moved: int, rival: dict[str, Any] | None = None, **arguments: Any) -> Row:
        return Row(
            name, lambda: (step(**arguments), ()), moved, host=True, graphs=True, first=3,
            rivals=() if rival is None else (("eager fused", lambda: step(**{**arguments, **rival})),))

    fused = {"fused": True}
    yield row("AdamW 200 parameters", moved, fused)
    yield row("AdamW 200 parameters, counters on the GPU", moved, capturable=True)
    yield row("SGD 200 parameters", 3 * 4 * sum(sizes()), {"fused": True}, kind=torch.optim.SGD, lr=1e-3)
    yield row("clipping and AdamW 200 parameters", moved + 3 * 4 * sum(sizes()), fused, clip=1.0)
