"""Plans with sizes as arguments in Triton's interpreter, against the program: one program a process.

    python -m generate.sized_cases softmax

Started by `test_sized_triton`, since a process that interprets kernels cannot compile them. Raises at the
first size at which the plan gives something else; prints how many sizes and which sources were run.
"""

import random
import sys

from generate.interpreted import TritonRun  # first: it chooses Triton's interpreter

import torch
from generate.sized_programs import FIRST, NOTHING, PROGRAMS, SIZES, TARGET, planned
from schedule.graphs import same

from preheat.generate import rungs, tiles
from preheat.run.buffers import sizes_at
from preheat.run.gpu import is_for, programs_of
from preheat.schedule import abreast, cost, open_parts, split

cost.GPU_ROW_ELEMS, split.GPU_STEPS = 64, (4, 16)
open_parts.OPEN_ROWS, open_parts.OPEN_PARTS, open_parts.PROGRAMS = 4, 4, 8
abreast.LEAST_ROWS, abreast.LEAST_COLUMNS = 8, 2
rungs.BLOCK_ELEMS, rungs.DEEP, rungs.ROW_STEPS, rungs.HALVED_ROW = 64, 16, 2, 64
tiles.ROW_BYTES, tiles.HELD_BYTES = 1024, 512


class SizedRun(TritonRun):
    """Each kernel by the source that a launch at its sizes takes."""

    def __init__(self, sources, used, *given):
        self.sources, self.used = sources, used
        super().__init__(*given)

    def source_of(self, kernel, call):
        sizes = sizes_at(self.plan, call)
        for place, source in enumerate(self.sources[kernel.name]):
            if source.sizing is None:
                return source, source.tile.programs, []
            if is_for(source.sizing, sizes):
                self.used.add((kernel.name, place))
                return source, programs_of(source.sizing, sizes), list(call.sizes)
        raise AssertionError("no source is for these sizes")


def main(name: str) -> None:
    torch.manual_seed(0)
    program, arguments = PROGRAMS[name]
    template, used, others = planned(program, arguments(*FIRST)), set(), 0
    for sizes in (FIRST, *SIZES, *NOTHING):
        args = arguments(*sizes)
        try:
            expected = program(*args)
        except (IndexError, RuntimeError):  # the largest of no elements
            continue
        expected = expected if isinstance(expected, tuple) else (expected,)
        mine = template if template.serves(args) else planned(program, args)
        others += mine is not template
        made = SizedRun(mine.sources, used if mine is template else set(), *mine.at(args), random.Random(0), TARGET).run()
        for a, b in zip(made, expected, strict=True):
            same(a, b)
    print(f"{1 + len(SIZES) + len(NOTHING)} sizes, {others} by other plans, {len(used)} sources")


if __name__ == "__main__":
    main(sys.argv[1])
