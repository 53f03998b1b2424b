"""Targets: what the kernels of a graph are generated for, and the generator that makes them.

    target = target_of(graph)             the GPU that its tensors are on, or this CPU
    image = image_of(plan.kernels, target)
    wait = begin_image(plan.kernels, target)          the same, with something to do meanwhile
"""

from collections.abc import Callable, Iterable, Sequence

from preheat.base.errors import Unsupported, UserError
from preheat.base.later import later
from preheat.bridge.tensors import architecture, gpu_among
from preheat.generate.build import build, host_target
from preheat.ir.graph import Graph, device_of
from preheat.ir.loop import Kernel
from preheat.ir.plan import Image, Plan, Target

Meanwhile = Callable[[Plan, str], None]  # a plan, and the device that it is for
cubin = later("preheat.generate.cubin")


def target_of(graph: Graph) -> Target:
    """What the kernels of `graph` are for: the GPU that its tensors are on, or this CPU.

    Raises Unsupported for a device that no code is generated for, or where the generator is absent.
    """
    device = device_of(graph)
    if device == "cpu":
        return host_target()
    if not device.startswith("cuda"):
        raise Unsupported("no_kernel", f"tensors on {device}")
    try:
        return cubin.gpu_target(architecture(device))
    except UserError as why:
        raise Unsupported("no_kernel", str(why)) from why


def nothing_to_do(plan: Plan, device: str) -> None:
    """What there is to do while the kernels of `plan` are compiled, if nobody says anything else."""


def image_of(kernels: Sequence[Kernel], target: Target) -> Image:
    """The machine code of `kernels`."""
    return begin_image(kernels, target)()


def begin_image(
    kernels: Sequence[Kernel], target: Target, asked: dict | None = None,
) -> Callable[[], Image]:
    """What waits for the machine code of `kernels`: those of a GPU are compiled meanwhile, and texts that
    images with one dict `asked` share once."""
    if target.is_gpu:
        return cubin.begin_gpu(kernels, target, asked=asked)
    image = build(kernels, target)
    return lambda: image


def expect(values: Iterable[object]) -> None:
    """Says that kernels are about to be generated for the device of the tensors among `values`: what needs time
    to begin does so now."""
    device = gpu_among(values)
    if device:
        cubin.prepare(architecture(device))
