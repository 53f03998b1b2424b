"""Replays: the recorded graphs of one executable, and when there is one.

    replays = Replays(graphs, executable, context, extras, bound, numbers)
    replays.cell       where the driver finds the first graph; 0 while there is none
    replays.notice     what a direct call tells its inputs, when `left` says that it is time

A plan is launched call by call at first. Its second call shows where its inputs lie, the third is
recorded (`recording.py`); from then on calls on the same stream launch the graph. What library calls
see of an input is fixed where it does not move, and copied where it does; a graph whose fixed input
has moved all the same serves no call until it lies there again, and is recorded anew if it does not.
What cannot be a graph is told once (event "direct") and launched call by call.
"""

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from preheat.base.dataclass import dataclass
from preheat.base.events import emit
from preheat.base.options import MODES
from preheat.base.tally import GRAPH_REPLAYS
from preheat.bridge.ops import draws, dtype as torch_dtype, overload, schema
from preheat.bridge.switches import library_switches
from preheat.ir.graph import Item
from preheat.ir.plan import KernelCall, LibraryCall, ProductCall
from preheat.ir.records import LAUNCH_ALIGN_BYTES, NODES, RECORDS
from preheat.run.buffers import extent_bytes, known, library_refs, runs_on_host, used_buffers, written_buffers
from preheat.run.call_rows import call_words
from preheat.run.device import Context
from preheat.run.executable import Executable
from preheat.run.lanes import Lane, Lanes, Unsafe
from preheat.run.lowering import lower_replay
from preheat.run.memory import Memory, flat
from preheat.run.recording import Recording, Roles, record

# Native calls before one is recorded: the first, one that shows where its inputs lie, the third.
CALLS_BEFORE_GRAPH = 3
CALLS_BEFORE_OWN = 3  # at the same sizes, before a plan that may be a graph is one of them alone
_CALLS_AGAIN = 2  # direct calls after which a graph that did not fit them is recorded anew
_LONGEST_WAIT = 1 << 16  # for one that had to make room again and again
_MOST_ATTEMPTS = 8
_CALLS_AFTER_FAILURE, _MOST_FAILURES = 64, 3
# What a graph may copy, in and out: so much for each launch that it saves. A launch costs the host
# 4 us, in which a GPU copies some MB; and a GPU that is the bottleneck gains nothing from graphs.
_COPY_BYTES_PER_LAUNCH = 1 << 20
_SMALL_BYTES = 1 << 20  # an argument of so many bytes is copied even if it never moved
_FEWEST_LAUNCHES = 2  # below, there is nothing to save


class Graphs:
    """What a compiled function asks for: graphs of its plans, within `limit_bytes` of memory for all
    that share a stream. `name` is what people call the function; a plan has its graph after `most_calls`
    at the same sizes."""

    most_calls = CALLS_BEFORE_OWN + CALLS_BEFORE_GRAPH

    def __init__(self, name: str, limit_bytes: int, lanes: Lanes | None = None):
        self.name, self.limit_bytes = name, limit_bytes
        self.lanes = lanes if lanes is not None else Lanes.of_process()

    @classmethod
    def asked_for(
        cls, name: str, mode: str | None, options: Mapping[str, Any]
    ) -> "Graphs | None":
        """What a function compiled in `mode` asks for; None for nothing."""
        limit_bytes = options.get("graph_bytes", 0)
        return cls(name, limit_bytes) if limit_bytes and MODES[mode or "default"].graphs else None

    def tell(self, why: str) -> None:
        """Plans that are launched call by call are reported."""
        emit("direct", name=self.name, why=why)


def trim(graphs: Graphs | None) -> None:
    """Memory that no graph needs any longer is given back."""
    if graphs is not None:
        graphs.lanes.trim()


@dataclass(frozen=True)
class Uses:
    """Which buffers of a plan library calls see, by root; which inputs are written; how many launches
    it has; the inputs and the results that it uses at all."""

    library: frozenset[int]
    written: frozenset[int]
    launches: int
    inputs: tuple[int, ...]
    results: tuple[int, ...]


class Replay:
    """One recorded graph, as the driver reads it."""

    def __init__(
        self, replays: "Replays", lane: Lane, recording: Recording, fixed: Sequence[tuple[int, int]],
    ):
        self.lane, self.recording, self.fixed, self.memory = lane, recording, tuple(fixed), Memory()
        words = self.memory.words
        patches = [
            (NODES.index(patch.kind), patch.node, patch.params, patch.owner,
             words(flat((s.address, s.slot, s.bytes, s.width) for s in patch.sites)),
             len(patch.sites))
            for patch in recording.patches]
        switches = replays.switches()
        self.address = self.memory.record("replay", {})
        self._words = (ctypes.c_int64 * len(RECORDS["replay"])).from_address(self.address)
        outputs, rows = lower_replay(
            replays.executable, replays.context, self.memory, replays.extras, self.address)
        fields = {
            "stream": lane.target,
            "executable": recording.executable,
            "patches": words(flat(patches)), "patch_count": len(patches),
            "fixed": words(flat(self.fixed)), "fixed_count": len(self.fixed),
            "switches": words(flat(
                (self.memory.object(reader), self.memory.object(value))
                for reader, value in switches)),
            "switch_count": len(switches),
            "outputs": words(flat(outputs)), "output_count": len(outputs),
            "calls": words(flat(call_words(rows))),
            "tally": GRAPH_REPLAYS.address,
            "used": GRAPH_REPLAYS.value,
        }
        for name, value in fields.items():
            self[name] = value

    def __getitem__(self, field: str) -> int:
        return self._words[RECORDS["replay"].index(field)]

    def __setitem__(self, field: str, value: int) -> None:
        self._words[RECORDS["replay"].index(field)] = ctypes.c_int64(value).value


class Replays:
    """See the module docstring.

    extras   how many objects the result takes besides the plan's values
    bound    inputs of the plan that are the same objects on every call
    numbers  those that are words, without an object
    """

    def __init__(
        self, graphs: Graphs, executable: Executable, context: Context, extras: int,
        bound: frozenset[int], numbers: frozenset[int] = frozenset(),
    ):
        self.graphs, self.executable, self.context = graphs, executable, context
        self.extras, self.bound, self.uses = extras, bound, uses_of(executable)
        # in place of numbers: the graph's are set at each launch
        self.words = {k: torch.zeros((), dtype=torch_dtype(executable.plan.inputs[k].dtype), device="cpu")
                      for k in numbers}
        self.cell, self.left = (ctypes.c_int64 * 1)(), (ctypes.c_int64 * 1)(CALLS_BEFORE_GRAPH - 1)
        self._replays: list[Replay] = []
        self._dropped: list[Replay] = []  # that a call may still be about to launch
        self._seen: dict[int, Sequence[int]] = {}  # by stream: where inputs lay
        self._moving: set[int] = set()
        self._attempts, self._failures, self._wait = 0, 0, _CALLS_AGAIN

    @property
    def recorded(self) -> tuple[Replay, ...]:
        """The graphs that calls may be launched by now."""
        return tuple(self._replays)

    def notice(self, *inputs: Any) -> None:
        """A call is about to be launched directly, with these inputs. Never raises an Exception."""
        self.left[0] = 1  # the next direct call asks again, unless something better comes
        turn = self.graphs.lanes.recording
        if not turn.acquire(blocking=False):  # who comes meanwhile launches directly
            return
        try:
            self._notice(inputs)
        except Unsafe as why:
            self._give_up(str(why))
        except Exception as why:  # a raise would be a fault of the call, which is none
            self._failed(f"it could not be recorded: {why}")
        finally:
            turn.release()

    def _notice(self, given: Sequence[Any]) -> None:
        others = iter(given)
        count = len(self.executable.plan.inputs)
        inputs = [self.words[k] if k in self.words else next(others) for k in range(count)]
        lane = self.graphs.lanes.here(self.executable.kernels_index)
        if lane is None:
            return
        addresses = [
            value.data_ptr() if isinstance(value, torch.Tensor) else 0 for value in inputs]
        known = next((replay for replay in self._replays if replay.lane is lane), None)
        if known is None and lane.target not in self._seen:
            self._seen[lane.target] = addresses
            return
        now = self._places(addresses)
        if any(now[b] % LAUNCH_ALIGN_BYTES for b in self.executable.pointed):
            return  # such a call runs on a copy, if at all: it shows nothing
        then = dict(known.fixed) if known is not None else self._places(self._seen[lane.target])
        self._moving.update(slot for slot, at in then.items() if now[slot] != at)
        if known is not None:
            self.drop(known)
            self._attempts += 1
            if self._attempts > _MOST_ATTEMPTS:
                raise Unsafe(f"it was recorded {_MOST_ATTEMPTS} times: what it reads keeps changing")
        self._record(lane, inputs)

    def _places(self, addresses: Sequence[int]) -> dict[int, int]:
        """Where each input buffer lies."""
        buffers = self.executable.plan.buffers
        return {b: addresses[buffers[b].index] for b in self.uses.inputs}

    def _record(self, lane: Lane, inputs: Sequence[Any]) -> None:
        roles, limit = self._roles(), self.graphs.limit_bytes
        lane.admit(_made_bytes(self.executable), limit)
        try:
            recording = record(self.executable, inputs, roles, lane, bool(self.uses.library))
            lane.admit(0, limit)
        except BaseException as error:
            lane.settle(limit, error)
            raise
        buffers = self.executable.plan.buffers
        fixed = [(b, inputs[buffers[b].index].data_ptr()) for b in roles.fixed]
        replay = Replay(self, lane, recording, fixed)
        self._replays.append(replay)
        lane.keep(self, replay)
        self._link()
        self.left[0] = self._wait
        emit("graph", name=self.graphs.name, text=recording.text())

    def _roles(self) -> Roles:
        """What becomes of each input and result. Raises Unsafe."""
        plan, uses = self.executable.plan, self.uses
        patched, copied, fixed, total = set(), [], [], 0
        for b in uses.inputs:
            size_bytes = extent_bytes(plan.buffers[b].type)
            if b not in uses.library:
                patched.add(b)
            elif b in uses.written or not self._moves(b, size_bytes):
                if b in self._moving:
                    raise Unsafe(f"an input that library calls write lies elsewhere on each call: "
                                 f"{plan.buffers[b].type}")
                fixed.append(b)
            else:
                copied.append(b)
                total += size_bytes
        results = [b for b in uses.results if extent_bytes(plan.buffers[b].type)]
        tails = [b for b in results if b in uses.library]
        total += sum(extent_bytes(plan.buffers[b].type) for b in tails)
        if total > uses.launches * _COPY_BYTES_PER_LAUNCH:
            raise Unsafe(f"{total >> 20} MB would have to be copied on each call, for "
                         f"{uses.launches} launches")
        patched.update(b for b in results if b not in uses.library)
        return Roles(frozenset(patched), tuple(copied), tuple(tails), tuple(fixed))

    def switches(self) -> tuple[tuple[Any, Any], ...]:
        """What the graph's library calls were recorded under."""
        plan = self.executable.plan
        calls = [call for call in plan.calls if isinstance(call, LibraryCall)]
        dtypes = {plan.buffers[b].type.dtype for call in calls for b in library_refs(call)}
        return library_switches(dtypes, any("convolution" in call.op for call in calls))

    def _moves(self, b: int, size_bytes: int) -> bool:
        """Whether input buffer `b` is to be taken as one that lies elsewhere on each call."""
        index = self.executable.plan.buffers[b].index
        return b in self._moving or index not in self.bound and size_bytes <= _SMALL_BYTES

    def drop(self, replay: Replay) -> None:
        """`replay` serves no further call."""
        self._replays = [other for other in self._replays if other is not replay]
        self._link()
        replay.lane.forget(replay)
        self._dropped = [old for old in (*self._dropped, replay) if old["busy"]]

    def forget(self, replay: Replay) -> None:
        """`replay` has to make room; it is recorded anew if its calls come again."""
        self.drop(replay)
        self.left[0] = self._wait = min(2 * self._wait, _LONGEST_WAIT)

    def _link(self) -> None:
        """The driver finds the graphs in a list."""
        following = 0
        for replay in self._replays:
            replay["next"] = following
            following = replay.address
        self.cell[0] = following

    def _failed(self, why: str) -> None:
        """A recording failed. Another thread may have been in the way, or memory short: once more,
        later."""
        self._failures += 1
        if self._failures == 1:
            self.graphs.tell(f"launched call by call: {why}")
        self.left[0] = _CALLS_AFTER_FAILURE if self._failures < _MOST_FAILURES else 0

    def _give_up(self, why: str) -> None:
        """No graph, for good."""
        for replay in self._replays:
            self.drop(replay)
        self.left[0] = 0  # counts down from here, and is never 1 again
        self.graphs.tell(f"launched call by call: {why}")


def replays_of(
    executable: Executable, context: Context, extras: int, bound: frozenset[int],
    numbers: frozenset[int],
) -> Replays | None:
    """The replays of `executable`, the same for all programs that run it; None if it has none."""
    graphs = executable.graphs
    if graphs is None or not executable.is_gpu or not context.add_gpu():
        return None
    if not context.words.get("launch_graph"):
        return None
    known = executable.replays.get(extras)
    if known is not None or executable.is_direct:
        return known
    why = why_direct(executable)
    executable.is_direct = bool(why) or uses_of(executable).launches < _FEWEST_LAUNCHES
    if why:
        graphs.tell(f"launched call by call: {why}")
    if executable.is_direct:
        return None
    made = executable.replays[extras] = Replays(
        graphs, executable, context, extras, bound, numbers)
    return made


def why_direct(executable: Executable) -> str:
    """Why the plan can never be a graph; "" if it may be one."""
    plan = executable.plan
    read = {o.buffer for o in plan.outputs if not o.alias}
    for call in plan.calls:
        read.update(
            library_refs(call) if isinstance(call, LibraryCall) else getattr(call, "buffers", ()))
    root = [place.root for place in executable.places]
    told = {root[b] for call in plan.calls if runs_on_host(plan, call) for b in written_buffers(plan, call)}
    for call in plan.calls:
        if isinstance(call, KernelCall):
            if not runs_on_host(plan, call) and not told.isdisjoint(root[b] for b in call.buffers):
                return "a kernel takes a number that the host computes"
            continue
        if isinstance(call, ProductCall):
            if not executable.is_gpu:
                return "a product runs on the host"
            continue
        if not call.op.startswith("aten."):
            return f"it calls {call.op}, an operator of the program's, which may do anything"
        if draws(call.op, call.args, call.attrs):
            return f"{call.op} draws random numbers"
        tags = {str(tag) for tag in overload(call.op).tags}
        given = (*call.args, *(value for _, value in call.attrs))
        if schema(call.op).is_data_dependent or tags & _UNSAFE_TAGS or any(map(_holds_item, given)):
            return f"{call.op} asks the GPU for a value"
        used = (*library_refs(call), *(b for b in call.results if b in read))
        if any(plan.buffers[b].type.device != executable.device for b in used):
            return f"{call.op} takes a number that may be another one on each call"
    return ""


def _holds_item(arg: Any) -> bool:
    return isinstance(arg, Item) or isinstance(arg, tuple) and any(map(_holds_item, arg))


_UNSAFE_TAGS = {
    "Tag.cudagraph_unsafe", "Tag.dynamic_output_shape", "Tag.data_dependent_output"}


def uses_of(executable: Executable) -> Uses:
    """How the plan of `executable` uses its inputs and makes its results."""
    plan, root = executable.plan, [place.root for place in executable.places]
    library: set[int] = set()
    written: set[int] = set()
    used: set[int] = set()
    launches = 0
    for call in plan.calls:
        if isinstance(call, ProductCall):
            seen = {root[b] for b in used_buffers(plan, call)}
            library |= seen
        elif isinstance(call, LibraryCall):
            seen = {root[b] for b in (*library_refs(call), *(r for r in call.results if r >= 0))}
            library |= seen
        else:
            seen = {root[b] for b in call.buffers}
        used |= seen
        written |= {root[b] for b in written_buffers(plan, call)}
        launches += not isinstance(call, KernelCall) or known(call.extent) > 0
    results = dict.fromkeys(root[o.buffer] for o in plan.outputs if not o.alias)
    return Uses(
        frozenset(library), frozenset(written), launches,
        tuple(b for b in sorted(used) if plan.buffers[b].kind == "input"), tuple(results))


def _made_bytes(executable: Executable) -> int:
    """What a recording needs at least."""
    plan = executable.plan
    results = (extent_bytes(b.type) for b in plan.buffers if b.kind == "output")
    return executable.arena_bytes + sum(results)
