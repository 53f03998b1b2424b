"""Regions: checkpoints of the program as parts of the graph, each op marked with its number.

    y = checkpoint(block, x, use_reentrant=False)
      ->
    %2 = aten.mm.default(%0, %1) grad region 1
    %3 = aten.tanh.default(%2) grad region 1

A backward computes again what the ops of a region gave. In eager that runs the program's function
again, with all that it does: so a region may have no effect but its tensors. It writes to nothing that
was there before, ends no node, and holds no other one. Nor does it write over what a derivative has
saved: torch's checkpoint computes with what is there at the end, the wrong gradient, and unseen. What
does more is found out while it runs: the call goes on for real, and the next capture makes the
checkpoint at this line a host call, as it does with all kinds that are no regions
(`bridge/checkpoints.py`).
"""

from typing import Any

from preheat.base.identity import identity
from preheat.bridge.checkpoints import OPTIONS, why_whole
from preheat.bridge.ops import writes_unseen
from preheat.bridge.redraw import is_draw, why_not_redrawn
from preheat.capture.observer import GiveUp
from preheat.ir.graph import Op


class Regions:
    """The regions of one run, and of those before it that were none.

    hosted   places in the program whose checkpoints are host calls, each with the reason
    places   those of its regions
    """

    def __init__(self, watcher: Any):
        self.watcher = watcher
        self.hosted: dict[str, str] = dict(watcher.limits.hosted)
        self.present: Present | None = None
        self.places: dict[str, None] = {}  # of all regions so far
        self._count = 0

    # ------------------------------------------------------------------ one region
    def open(self, function: Any, args: tuple, kwargs: dict) -> tuple:
        """A checkpoint is called with these: what is to run."""
        watcher = self.watcher
        for name in OPTIONS & kwargs.keys() - {"context_fn"}:
            watcher.look(kwargs[name], 0)
        place = self._place()
        if self.present is not None:
            raise GiveUp("impure_region", "a checkpoint within a checkpoint")
        is_whole = place in self.hosted or not watcher.limits.has_regions
        with watcher.recorder.paused():
            opened = watcher.perform(function, (
                args, kwargs, is_whole, watcher.recorder.is_generating), {})
        if (region := opened[-1]) is not None:
            self._count += 1
            self.places[place] = None
            watcher.recorder.region = self._count
            self.present = Present(watcher, place, region.keeps_random)
            region.watch(self.present.saved)
        return opened

    def close(self, function: Any, args: tuple) -> None:
        """The function of the present region is done."""
        watcher, present = self.watcher, self.present
        why = present.why_impure(watcher)
        with watcher.recorder.paused():
            watcher.perform(function, args, {})
        watcher.recorder.region = 0
        if why:
            raise GiveUp("impure_region", why, None)
        watcher.recorder.read_by_regions |= present.reads(watcher.recorder)
        self.present = None

    def why_whole(self, args: tuple, kwargs: dict) -> str:
        """Why this checkpoint is a host call."""
        return why_whole(args, kwargs) or self.hosted.get(self._place(), "") or "of another backend"

    def gave_up(self, reason: str, detail: str) -> None:
        """The capture ends. If a region is to blame, it shall be none the next time."""
        if self.present is not None:
            self.hosted[self.present.place] = detail if reason == "impure_region" else f"{reason}: {detail}"
        elif reason == "impure_region":
            self.hosted.update(dict.fromkeys(self.places, detail))

    def _place(self) -> str:
        file, line, _ = self.watcher.nodes.where()
        return f"{file}:{line}"

    # ------------------------------------------------------------------ what it does
    def born(self, value: Any) -> None:
        """The function made `value`."""
        if self.present is not None:
            self.present.made[identity(value)] = value

    def written(self, owner: Any) -> None:
        """The function is about to write to `owner`."""
        if self.present is not None and identity(owner) not in self.present.made:
            raise GiveUp("impure_region", f"it writes to a {type(owner).__qualname__} from outside")


class Present:
    """A region whose function is running, and how things stood before it."""

    def __init__(self, watcher: Any, place: str, keeps_random: bool):
        self.place, self.keeps_random = place, keeps_random
        self.made: dict[int, Any] = {}  # Python objects, which stay alive: an id means one of them
        self._recorder = watcher.recorder
        self._builder, self._first = watcher.recorder.builder, len(watcher.recorder.builder.ops)
        self._saved: dict[int, int] = {}  # by root: how many ops there were when autograd first saved of it
        self._last = 0  # how many there were when it last saved something
        self._effects = self._effects_of(watcher)
        self._ambient = watcher.nodes.ambient_now()

    def _effects_of(self, watcher: Any) -> tuple:
        return len(watcher.effects.list), len(watcher.risen), [*watcher.contexts], dict(watcher._locks)

    def saved(self, tensor: Any) -> None:
        """Autograd saves `tensor`."""
        self._last = len(self._builder.ops)
        if (root := self._recorder.root_of(tensor)) is not None:
            self._saved.setdefault(root, self._last)

    def why_impure(self, watcher: Any) -> str:
        """What the function has done beside its tensors, or ""."""
        if watcher.recorder.builder is not self._builder:
            return "a node ended in it"
        if self._effects_of(watcher) != self._effects:
            return "it writes to what is outside"
        if watcher.nodes.ambient_now() != self._ambient:
            return "it leaves another state of torch"
        made = self._made()
        for op in self._ops():
            if any(watcher.recorder.root[value] not in made for value in op.writes) or writes_unseen(op):
                return f"{op.name} writes to a tensor from outside"
        for place, op in enumerate(self._ops(), self._first):
            # what is computed again ends where something is saved last: later writes do not happen there
            if place < self._last and any(
                    self._saved.get(watcher.recorder.root[value], place + 1) <= place for value in op.writes):
                return f"{op.name} writes to what a derivative has saved: gradients are wrong, and eager's"
        if not self.keeps_random and any(map(is_draw, self._ops())):
            return "it draws other random numbers each time"
        return why_not_redrawn(self._ops())

    def reads(self, recorder: Any) -> set[int]:
        """The roots of what it has read from outside."""
        made = self._made()
        found = {recorder.root[value] for op in self._ops() for value in op.refs()}
        return found - made

    def _ops(self) -> list[Op]:
        return self._builder.ops[self._first:]

    def _made(self) -> set[int]:
        """The first values of memory that it has made."""
        return {
            result for op in self._ops() for result, alias in zip(op.results, op.aliases) if alias == -1}
