"""Measuring on a GPU: what a kernel, and what a whole plan takes, on data of its own.

    bench = Measure("cuda:0", runtime_image)
    bench.kernels_us(candidates, types)       [2.1, 2.6]     by events, the median of rounds
    bench.plans_us([(plan, image), ...])      [31.8, 88.4]   by the native driver, call after call

Data are random where they are floats and zeros elsewhere, so that every index is in range; the
program's random state is left alone. A kernel is launched behind a wait that hides the host, so its
time is the device's; a plan is called as a program calls it, so what counts is the slower of the
two, unless a graph launches it. L2: whatever a kernel touches was just written or read in a small program, and is long gone in
one whose memory exceeds the cache, weights most of all. So `is_cold` kernels go through copies of
their data, twice the cache in all, and others use one set (research/gpu.md measures likewise).

Requires a current stream that is not being captured. What does not fit the memory, or cannot run, is
None. Knows nothing of what kernels mean.
"""

import contextlib
import ctypes
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from types import MappingProxyType
from typing import Any

import torch

from preheat.base.errors import PreheatError
from preheat.bridge.ops import dtype as torch_dtype, private
from preheat.ir.plan import Binary, Image, KernelCall, Plan, Target
from preheat.ir.trace import Node, Recipe, Return, Signature, Source, Step, Trace
from preheat.ir.types import DTYPES, TensorType
from preheat.run.buffers import extent_bytes, is_number, new_arena, places, read_buffers
from preheat.run.device import context
from preheat.run.entry import make_entry
from preheat.run.executable import Executable, executable
from preheat.run.gpu import load_gpu, run
from preheat.run.recipes import compile_recipe

ROUNDS = 5
PLAN_ROUNDS = 9
_ROUND_US = 400.0  # of launches between two events
_MOST_LAUNCHES = 20
_PLAN_ROUND_S = 0.012
_MOST_PLAN_CALLS = 200
_LAUNCH_CYCLES = 60_000  # in which the host is sure to launch once from Python
_HIDDEN_S, _CYCLES_A_SECOND = 0.01, 2e9  # of the host's work behind a wait; a GPU's clock, about
_MOST_COPIES, _MOST_BYTES = 32, 1 << 30
_SEED = 20221


@functools.lru_cache(maxsize=8)
def measure_on(device: str, runtime: Image | None) -> "Measure | None":
    """What measures on `device`; None where torch has no such device."""
    has_device = device.startswith("cuda") and torch.cuda.is_available()
    return Measure(device, runtime) if has_device else None


class Measure:
    """`device` measured. runtime: the native driver, without which plans are called from Python."""

    def __init__(self, device: str, runtime: Image | None):
        self.device, self.runtime = device, runtime
        properties = torch.cuda.get_device_properties(device)
        self.name = properties.name
        self.cache_bytes = getattr(properties, "L2_cache_size", 0) or 50 << 20

    def is_possible(self) -> bool:
        """Whether work can be submitted and waited for now."""
        return not torch.cuda.is_current_stream_capturing()

    def is_cold(self, plan: Plan) -> bool:
        """Whether the memory of `plan` exceeds the cache."""
        sizes = (extent_bytes(b.type) for b in plan.buffers if b.kind not in ("view", "arena"))
        return sum(sizes) > self.cache_bytes

    # ------------------------------------------------------------------ kernels
    def kernels_us(
        self, candidates: Sequence[Binary], plan: Plan, call: KernelCall, target: Target,
        is_cold: bool = False,
    ) -> list[float | None]:
        """The device's time of each of `candidates` for the kernel of `call`, in microseconds."""
        types = [plan.buffers[b].type for b in call.buffers]
        numbers = [is_number(plan, call, place) for place in range(len(types))]
        with self._apart():
            try:
                sets = self._sets(types, is_cold)
            except torch.cuda.OutOfMemoryError:
                return [None] * len(candidates)
            return [self._kernel_us(binary, target, sets, numbers) for binary in candidates]

    def _kernel_us(
        self, binary: Binary, target: Target, sets: list[list[torch.Tensor]], numbers: list[bool],
    ) -> float | None:
        try:
            loaded = load_gpu(Image(b"", (("kernel", 0),), target, (binary,)), self.device)
        except PreheatError:  # more shared memory or registers than there are
            return None
        launch = loaded.launch("kernel")
        memory = [new_arena(launch.memory_bytes, self.device)] if launch.memory_bytes else []
        try:
            parameters = [
                [ctypes.c_uint64(0 if is_one else tensor.data_ptr())
                 for tensor, is_one in (*zip(tensors, numbers), *((own, False) for own in memory))]
                for tensors in sets]
            return self._events_us(lambda k: run(launch, parameters[k % len(parameters)]))
        except PreheatError:
            return None
        finally:
            loaded.unload()

    def _events_us(self, submit: Callable[[int], None]) -> float:
        """The median over rounds of the time of one of many submissions behind each other."""
        def round_us(count: int, first: int) -> float:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            _wait(count * _LAUNCH_CYCLES)
            begin.record()
            for k in range(count):
                submit(first + k)
            end.record()
            end.synchronize()
            return begin.elapsed_time(end) * 1e3 / count

        submit(0)
        once = round_us(2, 1)
        count = max(1, min(_MOST_LAUNCHES, int(_ROUND_US / max(once, 0.5))))
        return _median([round_us(count, k * count) for k in range(ROUNDS)])

    def _sets(self, types: Sequence[TensorType], is_cold: bool) -> list[list[torch.Tensor]]:
        size = max(1, sum(map(extent_bytes, types)))
        copies = min(_MOST_COPIES, _MOST_BYTES // size, 1 + 2 * self.cache_bytes // size)
        generator = torch.Generator(self.device).manual_seed(_SEED)
        return [
            [filled(type, generator) for type in types]
            for _ in range(max(copies, 1) if is_cold else 1)]

    # ------------------------------------------------------------------ plans
    def plans_us(
        self, plans: Sequence[tuple[Plan, Image | None]], is_graphed: bool = False,
    ) -> list[float | None]:
        """The time of a call of each plan, of calls one after the other: all have the same inputs.

        is_graphed   the device's time alone, since a graph will launch it all at once
        """
        with self._apart():
            generator = torch.Generator(self.device).manual_seed(_SEED)
            try:
                inputs = [filled(type, generator) for type in plans[0][0].inputs]
            except torch.cuda.OutOfMemoryError:
                return [None] * len(plans)
            made: list[Executable] = []
            try:
                calls = [self._call(plan, image, inputs, made) for plan, image in plans]
                return self._plan_times(calls, inputs, is_graphed)
            finally:
                torch.cuda.synchronize(self.device)
                for one in made:
                    if one.kernels is not None:
                        one.kernels.unload()

    def _plan_times(
        self, calls: Sequence[Callable | None], inputs: list, is_graphed: bool,
    ) -> list[float | None]:
        """The median time of each of `calls`, which take turns."""
        counts = [call and self._count(call, inputs) for call in calls]
        times: list[list[float]] = [[] for _ in calls]
        for _ in range(PLAN_ROUNDS):
            for place, (call, count) in enumerate(zip(calls, counts)):
                if count:
                    took = self._device_us if is_graphed else _call_us
                    times[place].append(took(call, inputs, count))
        return [_median(found) if found else None for found in times]

    def _call(
        self, plan: Plan, image: Image | None, inputs: list, made: list[Executable],
    ) -> Callable | None:
        """`plan` as a program would call it, None if it is not possible to; `made` gets what has its
        code in memory."""
        if not is_measurable(plan):
            return None
        try:
            made.append(executable(plan, image))
            call = entry_of(made[-1], self.runtime)
            call(*inputs)
            torch.cuda.synchronize(self.device)
        except (PreheatError, RuntimeError):
            return None
        return call

    def _device_us(self, call: Callable, inputs: list, count: int) -> float:
        """The device's time of a call, which a wait separates from the host's."""
        torch.cuda.synchronize()
        began = time.perf_counter()
        call(*inputs)
        host_s = time.perf_counter() - began
        count = max(1, min(count, int(_HIDDEN_S / max(host_s, 1e-6))))
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        _wait(int(1.5 * count * host_s * _CYCLES_A_SECOND))
        begin.record()
        for _ in range(count):
            call(*inputs)
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3 / count

    def _count(self, call: Callable, inputs: list) -> int:
        once = min(_seconds(call, inputs, 2) / 2 for _ in range(2))
        return max(1, min(_MOST_PLAN_CALLS, int(_PLAN_ROUND_S / max(once, 1e-6))))

    @contextlib.contextmanager
    def _apart(self) -> Iterator[None]:
        """The program's modes, random state and errors are not touched."""
        index = torch.device(self.device).index or 0
        with torch.cuda.device(index), torch.random.fork_rng([index]), torch.no_grad():
            yield


def entry_of(made: Executable, runtime: Image | None) -> Callable:
    """`made` as a function of its inputs that gives the tuple of its results, native where the process
    allows it. Raises RuntimeError at a fault."""
    plan = made.plan
    count = len(plan.outputs)
    steps = tuple(Step("value", (k,)) for k in range(count))
    recipe = Recipe((*steps, Step("tuple", tuple(range(count)))), count)
    node = Node((), tuple(range(len(plan.inputs))), None, Return(recipe))
    sources = tuple(Source(-1, "arg", k) for k in range(len(plan.inputs)))
    trace = Trace(Signature(len(sources)), sources, (node,))
    entry = make_entry(
        trace, [None] * len(sources), _NoRows, made, compile_recipe(recipe, count), _refuse,
        runtime=runtime, context=context(), miss=None)
    return entry.call if entry.is_native else lambda *inputs: tuple(made(list(inputs)))


def filled(type: TensorType, generator: torch.Generator) -> torch.Tensor:
    """A tensor of `type` with data: random floats, zeros of other dtypes."""
    dtype = torch_dtype(type.dtype)
    memory = torch.zeros(
        max(1, extent_bytes(type) // type.itemsize), dtype=dtype, device=type.device)
    if type.kind == "f" and type.device != "cpu" and type.dtype in _NORMAL:
        memory.normal_(generator=generator)
    return memory.as_strided(type.sizes, type.strides)


def is_measurable(plan: Plan) -> bool:
    """Zeros are in range wherever a kernel of `plan` checks an index: it comes from an input."""
    where = places(plan)
    for call in plan.calls:
        kernel = plan.kernels[call.kernel] if isinstance(call, KernelCall) else None
        body = [op for stage in kernel.stages for op in stage.body] if kernel is not None else ()
        if not any(op.op == "check" for op in body):
            continue
        dtypes = {op.id: op.dtype for op in body}
        casts = (op for op in body if op.op == "cast" and DTYPES[op.dtype].kind in "iu")
        if any(DTYPES[dtypes[op.args[0]]].kind == "f" for op in casts):
            return False
        if any(
            DTYPES[plan.buffers[b].type.dtype].kind in "iu" and where[b].kind != "input"
            for b in read_buffers(plan, call)
        ):
            return False
    return True


_NORMAL = ("float64", "float32", "bfloat16", "float16")


class _NoRows:
    """Guards that always hold."""

    address, count, words = 0, 0, MappingProxyType({})


def _refuse(reason: int, detail: int, arguments: tuple, names: tuple) -> Any:
    raise RuntimeError(f"the plan met a fault: {reason}, {detail}")


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def _call_us(call: Callable, inputs: list, count: int) -> float:
    return _seconds(call, inputs, count) / count * 1e6


def _seconds(call: Callable, inputs: list, count: int) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(count):
        call(*inputs)
    torch.cuda.synchronize()
    return time.perf_counter() - began


def _wait(cycles: int) -> None:
    """Keeps the device busy, so that what is submitted meanwhile runs without gaps."""
    sleep = private("cuda._sleep")
    if sleep is not None:
        sleep(cycles)


