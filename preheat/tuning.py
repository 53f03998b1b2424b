"""The search of the modes "max-autotune": which tiles, and which products are kernels. By measurement.

    plan, image = tuned(core, whole, target, bench)

    1. each distinct kernel, its tiles:      128x64x64 warps 4 stages 4: 11.2 us   64x64x64 ..: 13.0 us
    2. each kind of product or convolution:  the library and a kernel after it, or one kernel, or (of a
                                             product) that in parts whose sums another kernel adds up
    3. the plan, against eager's own calls by the same driver: what is slower does not run

Kernels are compiled in threads and timed alone; plans are timed whole, as a program calls them, since
what a choice saves may be a launch, and what it costs another fusion. Every answer goes into a table
that is kept beside the cache and ships with it: what the table has is not measured again, and a
process without a device, or without time left, takes the rest by rules.

Choices that change bits (the order of sums, products by other code) are apart from those that do not:
with `is_deterministic` only the latter are searched, so that results do not depend on what was
measured. Requires level core. Guarantees: the plan computes what `core` computes.
"""

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor


from preheat.base.dataclass import dataclass
from preheat.base.errors import InternalError, Unsupported
from preheat.base.events import emit
from preheat.generate.cubin import Known, binary, build_gpu, kernel_key
from preheat.generate.tiles import Tile
from preheat.generate.triton import source_of
from preheat.generate.tuned import changes_bits, choices
from preheat.ir.bench import Bench
from preheat.ir.devices import device_of as device_facts
from preheat.ir.graph import Graph, device_of
from preheat.ir.loop import Kernel, is_for_any, is_on_host
from preheat.ir.pack import digest
from preheat.ir.plan import Binary, Image, KernelCall, Plan, Rounding, Target
from preheat.schedule.layouts import laid_out
from preheat.schedule.products import parts_of, products_by_rule, products_of
from preheat.schedule.schedule import schedule

EAGER, LIBRARY, FUSED = "eager", "library", "fused"
Choice = frozenset[tuple[int, int]]  # the products that are kernels, each with its parts: 1 for whole
GAIN = 0.98  # what is not faster by as much is not worth another choice


def tuned(
    core: Graph, whole: Callable[[], Graph] | None, target: Target, bench: Bench,
    passed: Collection[int] | None = None, rounding: Rounding = Rounding(),
) -> tuple[Plan, Image]:
    """The fastest plan of `core` that the table or the search knows, and its code.

    whole   gives the same graph with every op a library call, as eager runs it; None: there is none
    passed, rounding   see `schedule`
    Raises as `schedule` and `build_gpu`.
    """
    return _Search(core, whole, target, bench, passed, rounding).result()


@dataclass
class _Progress:
    """How much is compiled and measured, and how long the rest will take."""

    name: str
    began: float
    done: int = 0
    total: int = 0

    def more(self, count: int) -> None:
        self.total += count

    def step(self, count: int = 1) -> None:
        self.done += count
        took = time.monotonic() - self.began
        left = took / self.done * (self.total - self.done)
        emit("tune", name=self.name, done=self.done, total=self.total, seconds_left=left)


class _Search:
    def __init__(
        self, core: Graph, whole: Callable[[], Graph] | None, target: Target, bench: Bench,
        passed: Collection[int] | None, rounding: Rounding,
    ):
        self.core, self.whole, self.target, self.bench = laid_out(core, target), whole, target, bench
        self.passed, self.rounding = passed, rounding
        self.measure = bench.measure(device_of(core))
        name = self.measure.name if self.measure is not None else ""
        self.table = bench.table(name, target.compiler)
        self.began = time.monotonic()
        self.is_blind = False  # a plan could not be timed: nothing was decided
        self.tiles: dict[str, Tile] = {}
        self.known: Known = {}
        self.asked: set[str] = set()
        self.progress = _Progress(bench.name, self.began)

    def result(self) -> tuple[Plan, Image]:
        key = digest((self.core, self.bench.is_deterministic, self.bench.is_graphed, *self.rounding))
        found = self.table.get("plan", key)
        if found is not None:
            made = self._stored(found)
            if made is not None:
                return made
        first = frozenset((value, 1) for value in products_by_rule(self.core, self.target, self.rounding))
        plain = self._scheduled(first)
        self._tune([plain])
        if self.bench.is_deterministic or not self._may_measure():
            return plain, self._image(plain)
        try:
            choice, plan, why = self._search(first, plain)
        except RuntimeError as error:  # of the device: no memory left to measure in, say
            choice, plan, why = "", plain, f"the search failed, so the rules decide: {error}"
        if choice and not self.is_blind and self._may_measure():  # else the next process goes on
            self.table.put("plan", key, choice)
        emit("tune", name=self.bench.name, choice=why, done=self.progress.done,
             total=self.progress.total, seconds_left=0.0)
        return plan, self._image(plan)

    def _stored(self, text: str) -> tuple[Plan, Image] | None:
        """The plan that was chosen before, or None for a text that makes no sense here."""
        kind, _, pairs = text.partition(" ")
        choice = _read(pairs) if kind == FUSED else frozenset()
        if kind not in (EAGER, LIBRARY, FUSED) or choice is None:
            return None
        if kind == EAGER:
            plan = self._eager()
            self._tune([plan] if plan is not None else [])
        else:
            plan = self._fused(choice)
        if plan is None:
            return None
        emit("tune", name=self.bench.name, choice=f"{_told(kind, choice)}, from the table",
             done=0, total=0, seconds_left=0.0)
        return plan, self._image(plan)

    # ------------------------------------------------------------------ plans
    def _search(self, best: Choice, plain: Plan) -> tuple[str, Plan, str]:
        """(the choice for the table, the plan, the reason in words), beginning with the rules' own."""
        plans: dict[Choice, Plan | None] = {best: plain}
        for changed in self._changes():
            wanted = changed(best)
            if wanted in plans or not self._may_measure():
                continue
            plans[wanted] = self._fused(wanted)
            if plans[wanted] is not None:
                now, other = self._times(plans[best], plans[wanted])
                if now is not None and other is not None and other < now * GAIN:
                    best = wanted
        plan = plans[best]
        eager = self._eager()
        if eager is not None and self._may_measure():
            ours, theirs = self._times(plan, eager)
            if ours is not None and theirs is not None:
                told = f"{ours:.1f} us, eager's calls {theirs:.1f} us"
                if theirs < ours * GAIN:
                    return EAGER, eager, f"{_told(EAGER, best)}: {told}"
                return _text(best), plan, f"{_told(FUSED, best)}: {told}"
        return _text(best), plan, _told(FUSED, best)

    def _changes(self) -> Iterator[Callable[[Choice], Choice]]:
        """What to try, given the best so far: none or all products as kernels, then each kind changed, the one
        with most products first, then kinds that are too few blocks in parts."""
        kinds: dict[str, list[int]] = {}
        for value, kind in products_of(self.core).items():
            kinds.setdefault(kind, []).append(value)
        groups = sorted(kinds.values(), key=len, reverse=True)
        yield lambda best: frozenset()
        if groups:
            yield lambda best: frozenset((value, 1) for group in groups for value in group)
        if len(groups) > 1:
            for group in groups:
                yield lambda best, values=tuple(group): _flipped(best, values)
        parts = parts_of(self.core, device_facts(self.target.arch).units)
        for group in groups:
            for count in parts.get(group[0], ()):
                yield lambda best, values=tuple(group), count=count: _without(best, values) | {
                    (value, count) for value in values}

    def _fused(self, choice: Choice) -> Plan | None:
        """The plan with these products as kernels; None where the schedule or Triton refuses."""
        try:
            if not {value for value, _ in choice} <= products_of(self.core).keys():
                return None
            plan = self._scheduled(choice)
            self._tune([plan])
            return plan
        except (Unsupported, InternalError):
            return None

    def _scheduled(self, choice: Choice) -> Plan:
        parts = {value: count for value, count in choice if count > 1}
        return schedule(
            self.core, self.target, {value for value, _ in choice}, parts, self.passed, self.rounding)

    def _eager(self) -> Plan | None:
        if self.whole is None:
            return None
        try:
            return schedule(self.whole(), self.target)
        except (Unsupported, InternalError):
            return None

    def _times(self, one: Plan, other: Plan) -> tuple[float | None, float | None]:
        self.progress.more(1)
        images = [(plan, self._image(plan)) for plan in (one, other)]
        found = self.measure.plans_us(images, self.bench.is_graphed)
        self.progress.step()
        self.is_blind = self.is_blind or found[0] is None
        return found[0], found[1]

    def _image(self, plan: Plan) -> Image:
        return build_gpu(plan.kernels, self.target, self.tiles, self.known)

    # ------------------------------------------------------------------ kernels
    def _tune(self, plans: Sequence[Plan]) -> None:
        """Settles the tiles of all kernels that are new: by the table, by measurement, by the rules."""
        open_ones: list[tuple[str, Kernel, Plan, KernelCall, Mapping[str, Tile]]] = []
        for plan in plans:
            calls = {c.kernel: c for c in plan.calls if isinstance(c, KernelCall)}
            for number, kernel in enumerate(plan.kernels):
                key = kernel_key(kernel)
                if key in self.asked or number not in calls or is_for_any(kernel) or is_on_host(kernel):
                    continue
                self.asked.add(key)
                if self.bench.is_deterministic and changes_bits(kernel):
                    continue
                found = choices(kernel, self.target)
                known = self.table.get("tile", key)
                if known in found:
                    self.tiles[key] = found[known]
                elif len(found) > 1 and not _has_check(kernel):
                    open_ones.append((key, kernel, plan, calls[number], found))
        if open_ones and self._may_measure():
            self.progress.more(2 * sum(len(found) for *_, found in open_ones))
            with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
                waiting = [
                    (row, [pool.submit(self._compiled, *row[:2], tile) for tile in row[4].values()])
                    for row in open_ones]
                # all of it before the first is timed: threads at work would delay the launches
                made = [(row, list(map(self._waited, futures))) for row, futures in waiting]
            for (key, kernel, plan, call, found), binaries in made:
                if self._may_measure():
                    self._tile(key, kernel, plan, call, found, binaries)

    def _waited(self, future: Future) -> Binary | None:
        made = future.result()
        self.progress.step()
        return made

    def _compiled(self, key: str, kernel: Kernel, tile: Tile) -> Binary | None:
        """The binary; None for a tile that the device has no room for, and where time is up."""
        if not self._may_measure():
            return None
        try:
            made = binary(source_of(kernel, self.target, tile), self.target)
        except InternalError:
            return None
        self.known[key, tile] = (made,)
        return made

    def _tile(
        self, key: str, kernel: Kernel, plan: Plan, call: KernelCall, found: Mapping[str, Tile],
        made: Sequence[Binary | None],
    ) -> None:
        """Measures the tiles of one kernel and keeps the best."""
        texts = [text for text, one in zip(found, made) if one is not None]
        binaries = [one for one in made if one is not None]
        try:
            times = self.measure.kernels_us(
                binaries, plan, call, self.target, self.measure.is_cold(plan))
        except RuntimeError:  # of the device; the rules' own tile is taken
            times = [None] * len(binaries)
        self.progress.step(len(found))
        timed = {text: took for text, took in zip(texts, times) if took is not None}
        if not timed:
            return
        first = next(iter(timed))
        best = min(timed, key=timed.__getitem__)
        if timed[best] > timed[first] * GAIN:
            best = first
        self.tiles[key] = found[best]
        self.table.put("tile", key, best)
        emit("tune", name=kernel.name, choice=f"{best}: {timed[best]:.1f} us", table=timed)

    def _may_measure(self) -> bool:
        has_time = time.monotonic() - self.began < self.bench.seconds
        return has_time and self.measure is not None and self.measure.is_possible()


def _has_check(kernel: Kernel) -> bool:
    """A kernel that may assert is not run on data of ours."""
    return any(op.op == "check" for stage in kernel.stages for op in stage.body)


def _without(choice: Choice, values: Sequence[int]) -> Choice:
    return frozenset(pair for pair in choice if pair[0] not in values)


def _flipped(choice: Choice, values: Sequence[int]) -> Choice:
    """Library calls as kernels, or the other way round."""
    rest = _without(choice, values)
    return rest if rest != choice else rest | {(value, 1) for value in values}


def _text(choice: Choice) -> str:
    """The choice as the table keeps it: "fused 3 7:4"."""
    pairs = (f"{value}:{count}" if count > 1 else f"{value}" for value, count in sorted(choice))
    return " ".join((FUSED, *pairs)) if choice else LIBRARY


def _read(text: str) -> Choice | None:
    """The choice of which `text` is, None for a text that is none."""
    try:
        pairs = [(pair.partition(":")[0], pair.partition(":")[2] or "1") for pair in text.split()]
        return frozenset((int(value), int(count)) for value, count in pairs)
    except ValueError:
        return None


def _told(kind: str, choice: Choice) -> str:
    if kind == EAGER:
        return "eager's own library calls run"
    parts = sum(count > 1 for _, count in choice)
    told = f", {parts} of them in parts" if parts else ""
    many = "1 product is a kernel" if len(choice) == 1 else f"{len(choice)} products are kernels"
    return f"{many}{told}" if choice else "products are library calls"
