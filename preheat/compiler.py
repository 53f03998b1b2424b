"""The sentence: capture, transform, schedule, generate. Imported only when something is new.

    made = compile_call(target, args, kwargs, request)     a call, from its entry
    made = resume_call(point, objects, values, request)    the rest of one, from a point
    made.outcome     the program's own result, or its exception, and the breaks if there are any
    made.artifacts   trace, plan and code of each node that was captured

A process that finds everything in the cache never imports this module, nor what it imports.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from preheat.base.collector import paused_collector
from preheat.base.dataclass import dataclass
from preheat.base.errors import Unsupported, is_strict
from preheat.base.events import emit, timed, wants
from preheat.base.later import later
from preheat.bridge.ambient import ROUNDING
from preheat.bridge.ops import unseen_inputs
from preheat.capture import capture as captures
from preheat.generate.build import host_target
from preheat.generate.emit import module_text
from preheat.generate.runtime import build_runtime
from preheat.ir.artifact import Artifact, artifact
from preheat.ir.bench import Bench
from preheat.ir.graph import Graph, device_of
from preheat.ir.hinted import Book
from preheat.ir.pack import decode, encode
from preheat.ir.plan import Image, Plan, Rounding, Target
from preheat.ir.sized import with_hinted_sizes
from preheat.ir.spent import spent_by
from preheat.ir.text import stage
from preheat.ir.trace import Node, Outcome, Point, Trace
from preheat.ir.training import Training
from preheat.schedule.batches import LEAST
from preheat.schedule.copies import with_copies
from preheat.schedule.products import products_by_rule
from preheat.schedule.schedule import schedule
from preheat.targets import Meanwhile, begin_image, expect, nothing_to_do, target_of
from preheat.transform.alike import alike
from preheat.transform.pipeline import WHOLE, lower

if TYPE_CHECKING:
    from preheat.differentiate import Lesson
    from preheat.sized_lesson import SizedLesson

differentiate, sized_lesson = later("preheat.differentiate"), later("preheat.sized_lesson")
templates, tuning = later("preheat.templates"), later("preheat.tuning")


@dataclass(frozen=True)
class Request:
    """What the caller asked for: `backend` "preheat", or another one, for which nothing is compiled
    here; and limits of capture.

    is_known(point, objects)   whether a capture that reaches the point stops there; objects: what
                               `Live(k)` of the point means
    dynamic                    paths of numbers that change from call to call
    bench                      with what the fastest kernels are searched for; None: no search
    may_wait                   a node that its own effects end may wait for its plan until it comes again
    meanwhile                  what there is to do for a plan on a device while its kernels are compiled
    """

    name: str
    backend: str | Callable
    limits: Any = None
    is_known: Callable[[Point, tuple], bool] = lambda point, objects: False
    dynamic: frozenset[str] = frozenset()
    bench: Bench | None = None
    may_wait: bool = False
    meanwhile: Meanwhile = nothing_to_do


@dataclass(frozen=True)
class Made:
    """`fault` is our own failure after a good capture: the outcome stands, and the nodes before
    the one that failed."""

    outcome: Outcome
    artifacts: tuple[Artifact, ...] = ()
    fault: Exception | None = None


def compile_call(target: Any, args: tuple, kwargs: dict, request: Request) -> Made:
    """Runs `target(*args, **kwargs)` for real, once, and compiles what it did.

    Never raises on its own account for a program it cannot compile: the outcome carries a break.
    """
    if request.backend == "preheat":
        expect((*args, *kwargs.values()))
    return _compiled(captures.capture, (target, args, kwargs), request)


def resume_call(point: Point, opened: list, values: list, request: Request) -> Made:
    """Runs a call on from `point`, for real, once, and compiles what it did.

    opened   what the recipe `point.snapshot` gave for `values`, the point's slots; both are emptied
    """
    return _compiled(captures.resume, (point, opened, values), request)


def interpret_call(
    point: Point, opened: list, values: list,
) -> Any:
    """The result of a call that runs on from `point` unwatched, as plain Python would. Empties
    `opened` and `values`."""
    return captures.interpret(point, opened, values)


def _compiled(run: Callable[..., Outcome], call: tuple, request: Request) -> Made:
    """What `run(*call)` captures, compiled."""
    with timed("capture", name=request.name) as event:
        outcome = run(
            *call, limits=request.limits, is_known=request.is_known, dynamic=request.dynamic)
        event.set(**outcome.counts, captured=bool(outcome.nodes))
    artifacts: list[Artifact] = []
    for captured in outcome.nodes:
        stage("trace", captured.trace)
        try:
            artifacts.append(_artifact(captured.trace, request))
        except Exception as fault:  # the program has run: our faults must not cost its result
            if isinstance(fault, Unsupported) and _has_regions(captured.trace):
                captures.refuse_regions(outcome, str(fault), request.limits)
                return Made(outcome, tuple(artifacts))
            return Made(outcome, tuple(artifacts), fault)
    return Made(outcome, tuple(artifacts))


def _artifact(trace: Trace, request: Request) -> Artifact:
    if request.backend != "preheat":
        return artifact(trace)
    (node,) = trace.nodes
    is_waiting = request.may_wait and node.body is not None and not node.body.symbols and (
        spent_by(trace) is not None)
    made = compile_trace(trace, request.name, request.bench, is_waiting, request.meanwhile)
    return made if node.body is None else replace(made, unseen=unseen_inputs(node.body))


def compile_trace(
    trace: Trace, name: str, bench: Bench | None = None, is_waiting: bool = False,
    meanwhile: Meanwhile = nothing_to_do,
) -> Artifact:
    """The artifact of a one-node trace. A graph that the compiler cannot lower, or whose gradients
    it cannot tell apart, runs op by op, reported. `is_waiting`: so does one that has no gradients, until
    its plan is asked for."""
    (node,) = trace.nodes
    if node.body is None:
        return artifact(trace)
    if node.body.symbols:
        return _sized(trace, name, bench)
    learning = _learning(trace, name)
    if learning is not None:
        return learning
    if is_waiting:
        return replace(artifact(trace), is_waiting=True)
    made = _generated(node.body, name, bench, _rounding(node), meanwhile)
    return artifact(trace) if made is None else artifact(trace, *made)


def _learning(trace: Trace, name: str) -> Artifact | None:
    """The artifact of a body that gradients leave: what its first backward will be learned with. None
    if autograd has nothing to do with it. Raises Unsupported if it has regions, and would run without."""
    (node,) = trace.nodes
    if not node.body.carries_gradient:
        return None
    try:
        target_of(node.body)
        training = lesson_of(node.body).training
    except Unsupported as reason:
        if _has_regions(trace):
            raise
        emit("fallback", what=f"the gradients of {name}", why=str(reason))
        return artifact(trace)
    return artifact(trace, training=training) if training.wiring.is_joined else None


def _has_regions(trace: Trace) -> bool:
    """Whether parts of the trace are checkpoints, of which plain autograd would save what is inside."""
    body = trace.nodes[0].body
    return body is not None and any(op.region for op in body.ops)


def lesson_of(
    graph: Graph, known: Training | None = None, **asked: Any,
) -> "Lesson | SizedLesson":
    """What is to be learned of a differentiable body. asked: see `Aims`. Raises Unsupported if it cannot
    be divided."""
    kind = sized_lesson.SizedLesson if graph.symbols else differentiate.Lesson
    return kind.of(graph, known, differentiate.Aims(**asked))


def _sized(trace: Trace, name: str, bench: Bench | None) -> Artifact:
    """The artifact of a trace whose sizes change: with a plan for all of them, if there can be one. Where
    the fastest kernels are searched for, which hang on sizes, there is none."""
    (node,) = trace.nodes
    body = templates.with_other_hints(templates.merged(node.body, trace), trace)
    trace = replace(trace, nodes=(replace(node, body=body),))
    learning = _learning(trace, name)
    if learning is not None:
        return learning
    if body.grads:  # but none leaves it
        body = replace(body, grads=(), grad_outputs=())
        trace = replace(trace, nodes=(replace(node, body=body),))
    made = compile_sizes(body, name) if bench is None or device_of(body) == "cpu" else None
    return artifact(trace) if made is None else artifact(trace, *made)


def compile_sizes(
    graph: Graph, name: str, bench: Bench | None = None,
) -> tuple[Plan, Image] | None:
    """The plan and the image of a graph whose sizes change: for all of them, or for some, if its
    symbols have got their values; or of one that has waited. None if it has to run op by op."""
    try:
        return _generated(graph, name, bench)
    except Exception as fault:  # ours: it goes on op by op, as before
        if is_strict():
            raise
        emit("fallback", what=f"the graph of {name}", why=f"{type(fault).__name__}: {fault}")
        return None


def _rounding(node: Node) -> Rounding:
    """What kernels may round: as the switches stood when the node began, while they stand so."""
    claimed = dict(guard.expected for guard in node.guards if guard.kind == "ambient")
    return Rounding(*claimed.get(ROUNDING, ()))


def _generated(
    graph: Graph, name: str, bench: Bench | None, rounding: Rounding = Rounding(),
    meanwhile: Meanwhile = nothing_to_do,
) -> tuple[Plan, Image] | None:
    """Plan and image of `graph`; None, reported, if it has to run op by op."""
    with timed("compile", name=name) as event, paused_collector():
        try:
            target = target_of(graph)
            book = Book()
            symbols, whole = tuple(name for name, _ in graph.symbols), graph
            if symbols:
                whole = with_hinted_sizes(graph, symbols, graph.hints, book)
            plan, image = compile_graph(whole, target, bench, bool(symbols), rounding, meanwhile)
        except Unsupported as reason:
            emit("fallback", what=f"the graph of {name}", why=str(reason))
            return None
        if wants("stage") and not target.is_gpu:
            emit("stage", name="llvm", text=module_text(plan.kernels, target))
        count = len(image.code) + sum(len(binary.code) for binary in image.binaries)
        event.set(kernels=len(plan.kernels), calls=len(plan.calls), bytes=count)
    if symbols:
        plan = replace(plan, symbols=symbols, conditions=book.conditions, preferences=book.preferences)
        plan = decode(encode(plan))  # with plain expressions, as another process gets it
    return plan, image


def compile_graph(
    graph: Graph, target: Target, bench: Bench | None = None, is_for_many: bool = False,
    rounding: Rounding = Rounding(), meanwhile: Meanwhile = nothing_to_do,
) -> tuple[Plan, Image]:
    """A plan for `graph` (level aten) and its code. A CPU has nothing to search. `is_for_many`: its
    sizes are hinted, and what was told to be the same for all of them is checked again. rounding: see `schedule`."""
    if target.is_gpu and bench is not None:
        plan, image = tuning.tuned(
            _core(graph), lambda: lower(graph, passes=WHOLE), target, bench, rounding=rounding)
    else:
        plan = None if is_for_many else _plan_of_few(graph, target, rounding)
        if plan is None:
            plan = _plan(graph, target, rounding, is_for_many)
        wait = begin_image(plan.kernels, target)
        meanwhile(plan, device_of(graph))
        image = wait()
    stage("plan", plan)
    return plan, image


def _plan_of_few(graph: Graph, target: Target, rounding: Rounding) -> Plan | None:
    """The plan of a graph with many equal parts, made from that of few; None for any other graph."""
    found = alike(graph, LEAST if target.is_gpu else 1)
    return None if found is None else with_copies(_plan(found.few, target, rounding), found)


def _plan(graph: Graph, target: Target, rounding: Rounding, is_for_many: bool = False) -> Plan:
    core = _core(graph, is_for_many)
    return schedule(core, target, products_by_rule(core, target, rounding), rounding=rounding)


def _core(graph: Graph, is_for_many: bool = False) -> Graph:
    return lower(
        graph, is_checked=is_strict(), is_for_many=is_for_many,
        observe=lambda step, made: stage(step.name, made))


def runtime_image() -> Image:
    """The native checker and driver for this machine."""
    return build_runtime(host_target())
