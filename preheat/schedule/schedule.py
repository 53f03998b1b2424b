"""Schedule: a core graph becomes a plan of kernels, products and library calls.

    %2 = mul(%0, %1); %3 = matmul(%2, %w); %4 = add(%3, expand(%b)); return %4

    plan  kernel mul_0 (b0, b1, b3) over 1024
          product b3 @ b2 -> b4
          kernel add_1 (b4 inout, b5) over 8

The steps: `layouts` takes convolutions of a GPU apart and turns them, `depthwise` makes some gradients of a CPU's sums,
`padding` and `alignment` pad and cut a GPU's products, `interleave` stores them by pieces, `sums` makes products of few rows sums, `split` cuts long reductions,
`sharing` says which stay whole since programs share their rows, `problem` names the values that need memory, `fuse` groups values into loop nests (`loops`, `forms`,
`tile`), `order` saves memory, `batches` puts together what a GPU launches at once, `memory` gives every value a buffer; here they become the nouns of `ir.plan`.

Requires level core. Guarantees: outputs have the strides of their types; in the order of the calls
reads of an input precede its write, and checks precede every write; kernels are distinct.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType

from preheat.base.errors import Unsupported, is_strict
from preheat.base.identity import identity
from preheat.base.later import later
from preheat.ir.graph import Graph, OutputAlias, Ref, device_of, map_refs
from preheat.ir.loop import ANY, Kernel, sizes_of
from preheat.ir.pack import digest
from preheat.ir.plan import Call, KernelCall, LibraryCall, Output, Plan, ProductCall, Rounding, Target
from preheat.schedule.activations import with_activations
from preheat.schedule.alignment import aligned_products
from preheat.schedule.batches import batched, waits_of
from preheat.schedule.depthwise import depthwise_sums
from preheat.schedule.fuse import fuse
from preheat.schedule.groups import Group
from preheat.schedule.interleave import interleaved_products
from preheat.schedule.layouts import laid_out
from preheat.schedule.memory import Layout, plan_memory
from preheat.schedule.names import kernel_name
from preheat.schedule.order import with_low_peak
from preheat.schedule.padding import padded_products
from preheat.schedule.problem import CallUnit, Problem
from preheat.schedule.products import products_as_kernels
from preheat.schedule.sharing import Rows, rows_to_share, with_shared_rows
from preheat.schedule.split import split_reductions
from preheat.schedule.sums import Sums, products_as_sums

checks = later("preheat.ir.verify")


def schedule(
    graph: Graph, target: Target, fused: Collection[int] = (),
    parts: Mapping[int, int] = MappingProxyType({}), passed: Collection[int] | None = None,
    rounding: Rounding = Rounding(),
) -> Plan:
    """The plan that computes `graph` on `target`.

    fused   products and convolutions (`schedule.products.products_of`) that kernels of a GPU compute, with
            what is done to their results; convolutions of a graph that is `laid_out`
    parts   into how many sums those of some are cut, which are added up by another kernel
    rounding   which of `fused` may round their float32 operands
    passed  of a plan that is to need little memory: the places of inputs that it lets go after their
            last use. Its large buffers come and go with their values instead of lying in an arena that
            is kept, and its order is one in which few bytes are there at once

    Sizes may be expressions (`ir/hinted.py`). Raises Unsupported for ops and dtypes that neither a
    kernel nor a library overload computes; InternalError, if PREHEAT_STRICT asks for it, for a plan that cannot be right.
    """
    plan = _scheduled(graph, target, fused, parts, passed, rounding)
    if is_strict():
        checks.verify(plan)
    return plan


def _scheduled(
    graph: Graph, target: Target, fused: Collection[int], parts: Mapping[int, int], passed: Collection[int] | None,
    rounding: Rounding,
) -> Plan:
    if device_of(graph).partition(":")[0] != target.kind and device_of(graph) != "cpu":
        raise Unsupported("no_kernel", f"tensors on {device_of(graph)}, code for {target.kind}")
    sums = products_as_sums(graph, fused)
    if target.is_gpu and fused:
        whole = interleaved_products(sums.graph, target)
        sums = sums.joined(products_as_kernels(sums.graph, fused, parts, rounding, whole))
    sums = sums.joined(depthwise_sums(sums.graph, target))
    graph = sums.graph
    for prepare in (laid_out, with_activations, padded_products, aligned_products):
        graph = prepare(graph, target)
    shared = rows_to_share(graph, target)
    if shared:
        plan = _plan(graph, target, sums, passed, shared)
        found = with_shared_rows(plan, target, frozenset(shared.values()))
        if found is not None:
            return found
    return _plan(graph, target, sums, passed)


def _plan(
    graph: Graph, target: Target, sums: Sums, passed: Collection[int] | None,
    shared: Mapping[int, Rows] = MappingProxyType({}),
) -> Plan:
    """The plan of a graph whose products are settled. shared: reductions of rows that programs will share."""
    graph = split_reductions(graph, target, {*sums.products, *shared})
    groups, units, waits = fuse(graph, target, sums, frozenset(shared.values()))
    problem, before = groups.problem, waits_of(units, waits)
    if passed is not None:
        units = with_low_peak(graph, problem, units, waits, passed)
    if target.is_gpu:
        units = batched(groups, units, before)
    layout = plan_memory(graph, problem, units, is_lean=passed is not None)
    kernels = _Kernels(problem, sums.products)
    calls: list[Call] = []
    for place, unit in enumerate(units):
        if isinstance(unit, Group):
            bound = layout.kernels[place]
            number = kernels.number(bound.kernel, unit)
            buffers = tuple(layout.number[m] for m in bound.memories)
            sizes = sizes_of(bound.kernel)
            moved = 0 if sizes else unit.tiled.bytes  # 0: by the buffers' sizes in each call
            calls.append(KernelCall(number, buffers, unit.tiled.extent, moved, sizes))
        elif unit.overload or unit.op.type.elems != 0:  # an overload makes its result, empty or not
            calls += _library_calls(unit, layout)
    outputs = _outputs(graph, problem, layout.number)
    return Plan(
        tuple(i.type for i in graph.inputs),
        layout.buffers,
        tuple(kernels.made),
        tuple(calls),
        outputs,
        layout.arena_bytes,
    )


class _Kernels:
    """The distinct kernels of a plan, with names."""

    def __init__(self, problem: Problem, products: frozenset[int]):
        self.problem, self.products = problem, products
        self.made: list[Kernel] = []
        self.by_content: dict[str, int] = {}
        self.by_identity: dict[int, int] = {}  # groups of one shape share the object

    def number(self, kernel: Kernel, group: Group) -> int:
        """The number of `kernel`, the one of `group`, in the plan."""
        found = self.by_identity.get(identity(kernel))
        if found is None:
            found = self.by_content.setdefault(digest(kernel), len(self.made))
            self.by_identity[identity(kernel)] = found
            if found == len(self.made):
                name = f"{kernel_name(group, self.problem, self.products)}_{found}"
                self.made.append(replace(kernel, name=name))
        made, count = self.made[found], group.tiled.extent
        is_flat = made.parallel == len(made.axes) == 1 and made.lane is not None
        are_known = type(made.axes[0].extent) is int and type(count) is int
        if is_flat and are_known and made.axes[0].extent != count:
            self.made[found] = replace(made, axes=(replace(made.axes[0], extent=ANY),))
        return found


def _library_calls(unit: CallUnit, layout: Layout) -> list[Call]:
    op, view = unit.op, {value: layout.views[v] for value, v in unit.operands}
    if not unit.overload:
        return [ProductCall(*(layout.views[v] for v in piece), unit.beta) for piece in unit.products]
    args = tuple(map_refs(arg, lambda value: Ref(view[value])) for arg in op.args)
    attrs = tuple(
        (name, map_refs(arg, lambda value: Ref(view[value])))
        for name, arg in op.attrs
        if op.name == "library" and name != "op"
    )
    results = tuple(layout.number.get(r, -1) for r in op.results)
    return [LibraryCall(unit.overload, args, attrs, results)]


def _outputs(graph: Graph, problem: Problem, number: Mapping[int, int]) -> tuple[Output, ...]:
    aliases = graph.output_aliases or (OutputAlias(),) * len(graph.outputs)
    types = graph.types()
    outputs: list[Output] = []
    for value, memory, alias in zip(graph.outputs, problem.outputs, aliases):
        if alias.kind == "fresh":
            outputs.append(Output(problem.types[memory], number[memory]))
        else:
            outputs.append(Output(
                types[value], -1, alias.kind, alias.base, alias.offset, alias.is_detached))
    return tuple(outputs)
