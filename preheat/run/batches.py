"""Batches: calls of one kernel that stand together and share nothing, launched at once.

    kernel sqrt_0(b1, b2) over 64            sqrt_0_table   writes b1, b2, b5, b6 to table t
    kernel sqrt_0(b5, b6) over 4096    ->    sqrt_0         5 programs: block 0 of row 0, blocks 0 to 3 of row 1

A kernel of a GPU that is for any number of elements takes the tensors of each call from a row of a table
(`generate/tables.py`). The table is memory of the call; which block of which row a program has is known
when the plan is bound. Where one call writes what another one uses, the batch ends between them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from preheat.base.dataclass import dataclass
from preheat.ir.loop import ANY, TABLE, is_for_any
from preheat.ir.plan import Call, KernelCall, Plan
from preheat.ir.records import WORD_BYTES
from preheat.ir.sized import has_sizes
from preheat.run.buffers import (
    Place, extent_bytes, is_number, known, read_buffers, runs_on_host, sizes_at, word_of, written_buffers,
)
from preheat.run.gpu import Launch, LoadedGpu


class Parameter(NamedTuple):
    """What a launch passes. kind "buffer": the address of buffer `value`, `bytes` further; behind the plan's
    buffers come tables. "number": what buffer `value` holds in the host's memory. "word": `value` itself."""

    kind: str
    value: int
    bytes: int = 0


Launches = tuple[tuple[Launch, tuple[Parameter, ...]], ...]


@dataclass(frozen=True, slots=True)
class Batches:
    """launches      by the number of the last call of each batch
    inside        calls that the last one of their batch does, too
    table_bytes   of each table, and of each such memory
    kept          what the launches read that stays in the GPU's memory
    """

    launches: Mapping[int, Launches]
    inside: frozenset[int]
    table_bytes: tuple[int, ...]
    kept: tuple[torch.Tensor, ...]


NONE = Batches({}, frozenset(), (), ())


def batches_of(plan: Plan, places: Sequence[Place], kernels: LoadedGpu, device: str) -> Batches:
    """The batches of `plan` on a GPU."""
    launches: dict[int, Launches] = {}
    inside: set[int] = set()
    tables: list[int] = []
    kept: list[torch.Tensor] = []
    for batch in stretches(plan, places):
        inside.update(batch[:-1])
        calls = [plan.calls[k] for k in batch if known(plan.calls[k].extent) > 0]
        if calls:
            table = len(plan.buffers) + len(tables)
            made, table_bytes, lasting = _launches(plan, calls, kernels, device, table)
            launches[batch[-1]] = made
            tables.append(table_bytes)
            kept += lasting
    for number, call in enumerate(plan.calls):
        memory_bytes = own_bytes(plan, call, kernels)
        if memory_bytes and not has_sizes(call.sizes):
            table = Parameter("buffer", len(plan.buffers) + len(tables))
            launches[number] = tuple(
                (launch, (*parameters, table)) for launch, parameters in launch_of(plan, kernels, call))
            tables.append(memory_bytes)
    return Batches(launches, frozenset(inside), tuple(tables), tuple(kept))


def own_bytes(plan: Plan, call: Call, kernels: LoadedGpu) -> int:
    """The memory that the launch of a call takes for itself."""
    is_launch = isinstance(call, KernelCall) and not runs_on_host(plan, call)
    name = plan.kernels[call.kernel].name if is_launch else ""
    return kernels.memory_bytes(name) if is_launch and not is_for_any(plan.kernels[call.kernel]) else 0


def launch_of(plan: Plan, kernels: LoadedGpu, call: KernelCall) -> Launches:
    """The launch of a call by itself; none where there is nothing to do."""
    if known(call.extent) <= 0:
        return ()
    launch = kernels.launch(plan.kernels[call.kernel].name, sizes_at(plan, call))
    words = (Parameter("word", word) for word in (*map(word_of, call.sizes), *launch.numbers))
    return ((launch, (*_parameters(plan, call), *words)),)


def _launches(
    plan: Plan, calls: Sequence[KernelCall], kernels: LoadedGpu, device: str, table: int,
) -> tuple[Launches, int, tuple[torch.Tensor, ...]]:
    """The launches that do `calls`, the bytes of their table, and what stays in memory."""
    kernel = plan.kernels[calls[0].kernel]
    extents = [known(call.extent) for call in calls]
    launch = kernels.launch(kernel.name, {ANY: 1})
    writer, rows = kernels.launch(f"{kernel.name}{TABLE}", {ANY: 1}), kernels.most(f"{kernel.name}{TABLE}", ANY)
    each = kernels.most(kernel.name, ANY)
    blocks = torch.tensor(
        [row << 32 | block for row, n in enumerate(extents) for block in range(-(-n // each))])
    sizes = torch.tensor(extents)
    kept = sizes.to(device), blocks.to(device)
    row_bytes = len(kernel.params) * WORD_BYTES
    found: list[tuple[Launch, tuple[Parameter, ...]]] = []
    for first in range(0, len(calls), rows):
        part = [*calls[first : first + rows]]
        part += part[:1] * (rows - len(part))  # rows that nobody reads
        target = Parameter("buffer", table, first * row_bytes)
        found.append((writer, (target, *(p for call in part for p in _parameters(plan, call)))))
    places = (Parameter("word", tensor.data_ptr()) for tensor in kept)
    found.append((replace(launch, programs=len(blocks)), (Parameter("buffer", table), *places)))
    return tuple(found), -(-len(calls) // rows) * rows * row_bytes, kept


def _parameters(plan: Plan, call: KernelCall) -> Iterator[Parameter]:
    for place, buffer in enumerate(call.buffers):
        yield Parameter("number" if is_number(plan, call, place) else "buffer", buffer)


def stretches(plan: Plan, places: Sequence[Place]) -> Iterator[list[int]]:
    """The calls of each batch."""
    batch: list[int] = []
    used = _Used(plan, places)
    for number, call in enumerate(plan.calls):
        is_next = isinstance(call, KernelCall) and is_for_any(plan.kernels[call.kernel])
        if batch and not (is_next and call.kernel == plan.calls[batch[-1]].kernel and used.is_apart(call)):
            yield batch
            batch, used = [], _Used(plan, places)
        if is_next:
            batch.append(number)
            used.add(call)
    if batch:
        yield batch


class _Used:
    """The memory that calls read and write. Inputs, results and what is allocated share none; buffers of
    the arena may, by their bytes."""

    def __init__(self, plan: Plan, places: Sequence[Place]):
        self.plan, self.places = plan, places
        self.seen: dict[Any, list[tuple[int, int, bool]]] = {}

    def add(self, call: Call) -> None:
        for memory, begin, end, is_written in self._spans(call):
            self.seen.setdefault(memory, []).append((begin, end, is_written))

    def is_apart(self, call: Call) -> bool:
        """Whether `call` writes nothing that is used, and uses nothing that is written."""
        return not any(
            begin < other_end and other_begin < end and (is_written or was_written)
            for memory, begin, end, is_written in self._spans(call)
            for other_begin, other_end, was_written in self.seen.get(memory, ()))

    def _spans(self, call: Call) -> Iterator[tuple[Any, int, int, bool]]:
        written = set(written_buffers(self.plan, call))
        for buffer in {*read_buffers(self.plan, call), *written}:
            place = self.places[buffer]
            memory = "arena" if place.kind == "arena" else place.root
            begin = place.offset_bytes
            yield memory, begin, begin + extent_bytes(self.plan.buffers[buffer].type), buffer in written
