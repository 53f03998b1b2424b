"""Plans of `schedule` with their kernels as machine code, on the memory of the loop interpreter."""

import random

import torch
from generate.kernels import run
from schedule.loop_interpret import Fault, _Run, flat_of, product

from preheat.ir.loop import Kernel
from preheat.ir.plan import KernelCall, Plan, Target


class NativeRun(_Run):
    """The loop interpreter, except that kernels are generated, in shuffled ranges of random length."""

    def __init__(self, plan: Plan, inputs: list[torch.Tensor], order: random.Random, target: Target):
        self.target = target
        super().__init__(plan, inputs, order)

    def _kernel(self, kernel: Kernel, call: KernelCall) -> None:
        memories = [flat_of(self.value(b)) for b in call.buffers]
        firsts = [memory.flat[memory.start:] for memory in memories]
        extent, ranges, begin = product(a.extent for a in kernel.axes[:kernel.parallel]), [], 0
        while begin < extent:
            end = min(extent, begin + self.order.choice((1, 3, 17, 64, 100, extent)))
            ranges.append((begin, end))
            begin = end
        self.order.shuffle(ranges)
        self.is_wrong |= run(kernel, firsts, self.target, ranges) != 0


def run_native(plan: Plan, inputs: list[torch.Tensor], target: Target, seed: int = 0) -> list[torch.Tensor]:
    """As `run_plan`, in machine code."""
    return NativeRun(plan, inputs, random.Random(seed), target).run()


__all__ = ["Fault", "run_native"]
