"""Executables: a plan run from Python. Fallback and oracle of the native driver.

    Executable(plan, load(image))([x, weight])  ->  [y]

Kernels are called through ctypes on data pointers, products and library calls through torch. Every
call leases an arena of its own from a pool, so two threads or a recursion may be in one executable.

Requires: inputs of exactly the plan's types (guards saw to it), written ones without overlap.
Guarantees: outputs have exactly the types' sizes and strides, alias outputs share memory with their
base; when a `Fault` is raised, no input was written.
"""

import contextlib
import ctypes
import functools
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch.autograd.graph import increment_version

from preheat.base.errors import InternalError
from preheat.bridge.ambient import is_autocast_on
from preheat.bridge.interpret import as_tensor
from preheat.ir.plan import Call, Image, KernelCall, LibraryCall, Output, Plan, ProductCall
from preheat.ir.records import LAUNCH_ALIGN_BYTES
from preheat.ir.types import TensorType
from preheat.run.batches import NONE, Batches, Launches, Parameter, batches_of, launch_of
from preheat.run.buffers import (
    Place,
    aligned_copy,
    device_of,
    empty,
    is_number,
    known,
    new_arena,
    places,
    read_buffers,
    runs_on_host,
    show_bytes,
    show_view,
    used_buffers,
    word_of,
    writes_inputs,
)
from preheat.run.gpu import Launch, LoadedGpu, load_gpu
from preheat.run.gpu import run as run_gpu
from preheat.run.library import Fault, library_function
from preheat.run.load import Loaded, load

Note = Callable[[Launch, Sequence[Parameter], list], None]


class Values(list):
    """What a run has by now: a torch.Tensor or None for each buffer, then the tables of batches, the error flag (a
    ctypes integer) last. `note` is told each launch."""

    note: Note | None = None


Action = Callable[[Values], None]

LEAN_BYTES = 1 << 10  # that a lean plan keeps on a CPU
KEPT_BYTES = 8 << 20  # of a GPU's memory, for each stream that a plan is called on
MISALIGNED = f"a tensor is not aligned to {LAUNCH_ALIGN_BYTES} bytes, as kernels expect"
_KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


class Executable:
    """`plan` on this machine. Call it with the list of input tensors; it returns the results.

    kernels       the loaded image that holds the plan's kernels, None when it has none
    is_grad_off   grad mode is on and an input requires grad: library calls run without
    is_autocast_off  library calls run outside of autocast; None: if it is on now
    is_lean       outputs are made when they are first filled, not at the start; on a GPU always
    takes_inputs  the list of inputs is the call's own: it is emptied, and each is let go after its
                  last use
    unseen        places of inputs whose versions do not count what is written to them
    graphs        what may be recorded of its calls (`run/replays.py`), None for nothing
    keeps_arena   the arena is kept from call to call: a small one, on a GPU for each stream, and on a CPU
                  that of a plan that is not lean. Another is allocated on each call
    """

    def __init__(
        self, plan: Plan, kernels: Loaded | LoadedGpu | None, is_grad_off: bool = False,
        is_autocast_off: bool | None = None, is_lean: bool = False, takes_inputs: bool = False,
        unseen: Collection[int] = (),
    ):
        self.plan, self.kernels, self.is_grad_off = plan, kernels, is_grad_off
        self.device = device_of(plan)
        self.is_gpu = self.device != "cpu"
        self.is_lean, self.takes_inputs = is_lean or self.is_gpu, takes_inputs
        self.kernels_index = torch.device(self.device).index or 0
        self.pointed = _pointed_inputs(plan) if self.is_gpu else ()
        self.places = places(plan)
        self.arena_bytes = known(plan.arena_bytes)
        # guards hold the ambient state in which the plan was bound, so what is so now stays so
        self.is_autocast_off = is_autocast_on() if is_autocast_off is None else is_autocast_off
        self.written, self.first_write = writes_inputs(plan)
        self.counted = tuple(b for b in self.written if plan.buffers[b].index not in unseen)
        self.library_results = {
            b
            for call in plan.calls
            if isinstance(call, LibraryCall)
            for b in call.results
            if b >= 0
        }
        # an operator of the user's must not see what a kernel that found a fault has left
        self.foreign = frozenset(
            k for k, call in enumerate(plan.calls)
            if isinstance(call, LibraryCall) and not call.op.startswith("aten.")
        )
        for number, buffer in enumerate(plan.buffers):
            if buffer.kind == "input" and buffer.type != plan.inputs[buffer.index]:
                raise InternalError(f"buffer {number} says {buffer.type} of an input that is not")
        for number, output in enumerate(plan.outputs):
            if output.buffer >= 0 and self.places[output.buffer].kind in ("arena", "input"):
                raise InternalError(
                    f"result {number} of the plan would be memory of the plan or of its caller"
                )
        most = KEPT_BYTES if self.is_gpu else LEAN_BYTES
        self.keeps_arena = not self.is_gpu and not is_lean or self.arena_bytes <= most
        freed = (
            "owned", *(() if self.keeps_arena else ("arena",)), *(("input",) if takes_inputs else ()))
        self.freed = frozenset(freed)
        self.free_after = _last_uses(plan, self.places, freed)
        # the buffers that come into being for a call that fills them, by call
        made = ("owned", "output") if self.is_lean else ("owned",)
        self.made_before = _first_uses(
            plan, self.places, made, self.library_results, self.first_write)
        self.graphs: Any = None
        # what has been recorded, by the count of objects that a program's result takes besides
        self.replays: weakref.WeakValueDictionary = weakref.WeakValueDictionary()
        self.is_direct = False  # nothing ever will be
        self._arenas: list[torch.Tensor] = []  # append and pop are atomic: a pool without a lock

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The results of the plan; a 0-d input may be given as a number. Raises Fault, or what a library call raises after a write.

        An error that is found too late, after a write, is an InternalError: nothing can be rerun.
        """
        arena = self._lease()
        try:
            with torch.no_grad() if self.is_grad_off else contextlib.nullcontext():
                values = self._values(inputs, arena)
                if self.takes_inputs:
                    inputs.clear()
                self._run(values)
                return self._results(inputs, values)
        finally:
            if not self.is_gpu and self.keeps_arena and self.arena_bytes:
                self._arenas.append(arena)

    def record(self, inputs: Sequence[torch.Tensor], note: Note) -> Values:
        """What the buffers hold after the calls; `note` is told each launch.

        For a stream's capture, in which nothing is computed: no input counts as written.
        """
        values = self._values(inputs, new_arena(self.arena_bytes, self.device))
        values.note = note
        self._run(values)
        return values

    @functools.cached_property
    def has_block(self) -> bool:
        """Whether an arena that is not kept is one allocation, on a CPU, whose buffers take the places of
        others, and on a GPU where kernels alone use it, 1 us a buffer saved: a stream runs kernels in order, so
        buffers may share places there, too. Else its buffers come from torch's allocator in turns."""
        arena = [k for k, place in enumerate(self.places) if place.kind == "arena"]
        if self.keeps_arena or not arena:
            return False
        if not self.is_gpu:
            return True
        others = (call for call in self.plan.calls if not isinstance(call, KernelCall))
        used = {b for call in others for b in used_buffers(self.plan, call)}
        return len(arena) > 1 and used.isdisjoint(arena)

    @functools.cached_property
    def batches(self) -> Batches:
        """The calls of a GPU's plan that are launched together."""
        if not self.is_gpu or self.kernels is None:
            return NONE
        return batches_of(self.plan, self.places, self.kernels, self.device)

    def launches(self, number: int) -> Launches:
        """What call `number` of a GPU's plan, which is a kernel's, launches."""
        if number in self.batches.inside:
            return ()
        if self.kernels is None:
            raise InternalError("the plan calls kernels and has no code")
        found = self.batches.launches.get(number)
        return launch_of(self.plan, self.kernels, self.plan.calls[number]) if found is None else found

    @functools.cached_property
    def _actions(self) -> tuple[Action, ...]:
        """One function a call, for runs from Python; the native driver has its own tables."""
        return tuple(self._action(number, call) for number, call in enumerate(self.plan.calls))

    def _action(self, number: int, call: Call) -> Action:
        if isinstance(call, KernelCall):
            is_launch = self.is_gpu and not runs_on_host(self.plan, call)
            return self._launches(number) if is_launch else _kernel_action(self.plan, self.kernels, call)
        if isinstance(call, ProductCall):
            return _product_action(call)
        return _library_action(self.plan, call, self.is_autocast_off)

    def _launches(self, number: int) -> Action:
        launches = self.launches(number)

        def action(values: Values) -> None:
            for launch, parameters in launches:
                with torch.cuda.device(launch.index):
                    run_gpu(launch, [_holder(parameter, values) for parameter in parameters])
                if values.note is not None:
                    values.note(launch, parameters, values)

        return action

    def _lease(self) -> torch.Tensor:
        try:
            return self._arenas.pop()
        except IndexError:
            return new_arena(self.arena_bytes, self.device)

    def _values(self, inputs: Sequence[torch.Tensor], arena: torch.Tensor) -> Values:
        """The tensor of every buffer that exists from the start."""
        if len(inputs) != len(self.plan.inputs):
            raise InternalError(f"the plan takes {len(self.plan.inputs)} inputs, not {len(inputs)}")
        values = Values([None] * len(self.plan.buffers))
        values += (new_arena(size, self.device) for size in self.batches.table_bytes)
        values.append(ctypes.c_int64(0))
        for number, (buffer, place) in enumerate(zip(self.plan.buffers, self.places)):
            if buffer.kind == "input":
                values[number] = _given(inputs[buffer.index], buffer.type)
            elif place.kind == "arena":
                values[number] = show_bytes(arena, place.offset_bytes, buffer.type)
            elif buffer.kind == "output" and number not in self.library_results and not self.is_lean:
                values[number] = empty(buffer.type)
        for number in self.pointed:
            if values[number].data_ptr() % LAUNCH_ALIGN_BYTES:
                if self.written:
                    raise Fault(MISALIGNED)
                values[number] = aligned_copy(values[number])
        return values

    def _run(self, values: Values) -> None:
        dead: list[int] = []
        for number, action in enumerate(self._actions):
            if number == self.first_write or number in self.foreign:
                _test(values)
            for buffer in self.made_before[number]:
                values[buffer] = empty(self.plan.buffers[buffer].type)
            self._show_views(values, number)
            try:
                action(values)
            except Exception as error:
                if number >= self.first_write:
                    raise
                raise Fault(f"call {number} of the plan raised {error!r}") from error
            dead += self.free_after[number]
            if number not in self.batches.inside:
                for buffer in dead:
                    if self.places[buffer].kind in self.freed:
                        values[buffer] = None
                dead = []
        try:
            _test(values)
        except Fault as fault:
            if self.written:
                raise InternalError(f"{fault}, after an input was written") from fault
            raise
        if self.written and values.note is None:
            increment_version([values[b] for b in self.counted])

    def _show_views(self, values: Values, number: int) -> None:
        """Makes the views that call `number` uses: their root may have just come into being."""
        for buffer in _buffers(self.plan, self.plan.calls[number]):
            place = self.places[buffer]
            if self.plan.buffers[buffer].kind == "view" and place.kind != "arena":
                base, type = values[place.root], self.plan.buffers[buffer].type
                values[buffer] = show_view(base, place.offset_bytes, type)

    def _results(self, inputs: Sequence[torch.Tensor], values: Values) -> list[torch.Tensor]:
        """The results in order. Views of results are made last: theirs may stand further on."""
        results: list[Any] = [None] * len(self.plan.outputs)
        for number, output in enumerate(self.plan.outputs):
            if not output.alias:
                made = values[output.buffer]
                results[number] = empty(output.type) if made is None else made  # it has no elements
        for is_detached in (True, False):  # others may be views of the detached ones
            for number, output in enumerate(self.plan.outputs):
                if output.alias and output.is_detached is is_detached:
                    base = (inputs if output.alias == "input" else results)[output.base]
                    results[number] = self._left(base, output)
        return results

    def _left(self, base: torch.Tensor, output: Output) -> torch.Tensor:
        """The result `output` in memory of `base`."""
        offset_bytes = known(output.offset) * output.type.itemsize
        is_seen = torch.is_grad_enabled() or self.is_grad_off and not base.requires_grad
        with torch.set_grad_enabled(is_seen):
            view = show_view(base, offset_bytes, output.type)
        return view.detach() if output.is_detached else view


def executable(
    plan: Plan, image: Image | None, is_grad_off: bool = False, is_autocast_off: bool | None = None,
    is_lean: bool = False, takes_inputs: bool = False, *, graphs: Any = None,
    unseen: Collection[int] = (),
) -> Executable:
    """`plan` with its kernels in memory: the CPU's, or those of the GPU that it runs on.

    Raises UserError when they are for another machine.
    """
    made = Executable(
        plan, loaded(plan, image), is_grad_off, is_autocast_off, is_lean, takes_inputs, unseen)
    made.graphs = graphs
    return made


def loaded(plan: Plan, image: Image | None) -> Loaded | LoadedGpu | None:
    """The kernels of `plan` in memory, None where it has none. Raises as `executable`."""
    if image is not None and (image.binaries or image.host):
        return load_gpu(image, device_of(plan))
    return load(image) if image is not None and image.code else None


def _given(value: Any, type: TensorType) -> torch.Tensor:
    """The tensor of an input; of a number, a 0-d one that holds it. Raises Fault if none does."""
    try:
        return as_tensor(value, type)
    except (OverflowError, RuntimeError) as why:
        raise Fault(f"the number {value} is no {type}: {why}") from why


def _test(values: Values) -> None:
    flag = values[-1].value
    if flag:
        raise Fault("a kernel found an index out of range or a division by zero", flag)


def _buffers(plan: Plan, call) -> tuple[int, ...]:
    if isinstance(call, KernelCall):
        return call.buffers
    if isinstance(call, ProductCall):
        return call.a, call.b, call.out
    return read_buffers(plan, call)


def _pointed_inputs(plan: Plan) -> tuple[int, ...]:
    """The input buffers whose addresses kernels get."""
    found = (
        b for call in plan.calls if isinstance(call, KernelCall)
        for place, b in enumerate(call.buffers)
        if plan.buffers[b].kind == "input" and not is_number(plan, call, place) and not runs_on_host(plan, call)
    )
    return tuple(dict.fromkeys(found))


def _last_uses(
    plan: Plan, where: tuple[Place, ...], freed: tuple[str, ...]
) -> tuple[tuple[int, ...], ...]:
    """For each call the buffers of kinds `freed` (and views of them) that nothing needs after it."""
    last: dict[int, int] = {}
    for number, call in enumerate(plan.calls):
        used = (*_buffers(plan, call), *(call.results if isinstance(call, LibraryCall) else ()))
        last.update({where[b].root: number for b in used if b >= 0})
    kept = {where[o.buffer].root for o in plan.outputs if o.buffer >= 0}
    lent = {o.base for o in plan.outputs if o.alias == "input"}
    kept |= {k for k, b in enumerate(plan.buffers) if b.kind == "input" and b.index in lent}
    free: list[list[int]] = [[] for _ in plan.calls]
    for buffer, place in enumerate(where):
        if place.kind in freed and place.root not in kept and place.root in last:
            free[last[place.root]].append(buffer)
    return tuple(map(tuple, free))


def _first_uses(
    plan: Plan, where: tuple[Place, ...], kinds: tuple[str, ...], library_results: set[int],
    first_write: int,
) -> tuple[tuple[int, ...], ...]:
    """For each call the buffers of `kinds` that it is the first to use and that no library call
    makes. Results that come later are made for call `first_write`: behind it memory must not be found short."""
    seen = set(library_results)
    found: list[list[int]] = [[] for _ in plan.calls]
    for number, call in enumerate(plan.calls):
        roots = dict.fromkeys(where[b].root for b in _buffers(plan, call))
        for root in roots:
            if where[root].kind in kinds and root not in seen:
                is_result = where[root].kind == "output"
                found[min(number, first_write) if is_result else number].append(root)
        seen.update(roots)
    return tuple(map(tuple, found))


# ---------------------------------------------------------------------------- one action a call
def _kernel_action(plan: Plan, kernels: Loaded | None, call: KernelCall) -> Action:
    name = plan.kernels[call.kernel].name
    if kernels is None:
        raise InternalError(f"the plan calls kernel {name} and has no code")
    run, extent, of_gpu = _KERNEL(kernels.address(name)), known(call.extent), runs_on_host(plan, call)
    pointers = ctypes.c_void_p * (len(call.buffers) + len(call.sizes) + 1)
    sizes = [ctypes.c_uint64(word_of(size)).value for size in call.sizes]

    def action(values: Values) -> None:
        if extent > 0 and not (of_gpu and values.note):  # a graph of a GPU is recorded: nothing is computed
            flag = values[-1]
            run(
                pointers(
                    *(values[b].data_ptr() for b in call.buffers), *sizes, ctypes.addressof(flag)),
                0,
                extent,
            )

    return action


def _holder(parameter: Parameter, values: Values) -> ctypes.c_uint64:
    """What holds the value of a parameter of a launch."""
    kind, value, further = parameter
    if kind == "word":
        return ctypes.c_uint64(value)
    address = values[value].data_ptr()
    return ctypes.c_uint64.from_address(address) if kind == "number" else ctypes.c_uint64(address + further)


def product(beta: int, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """out = a @ b + beta * out, by torch; on a GPU `out` is stored to as it lies in memory."""
    with torch.no_grad():
        if out.is_cuda and not beta:
            (torch.mm if out.ndim == 2 else torch.bmm)(a, b, out=out)
            return
        result = torch.matmul(a, b)
        out.copy_(result.add_(out, alpha=beta) if beta else result)


def _product_action(call: ProductCall) -> Action:
    def action(values: Values) -> None:
        product(call.beta, values[call.a], values[call.b], values[call.out])

    return action


def _library_action(plan: Plan, call: LibraryCall, is_autocast_off: bool) -> Action:
    function, refs = library_function(plan, call, is_autocast_off)
    needed = tuple(b for b in call.results if b >= 0)

    def action(values: Values) -> None:
        results = function(*(values[r] for r in refs))
        if len(needed) == 1:
            values[needed[0]] = results
        else:
            for buffer, result in zip(needed, results or ()):
                values[buffer] = result

    return action
