"""Text: every noun as lines a person reads; core graphs and kernels read back exactly.

    graph core (%0: f32[8, 128] "x", %1: f32[128] "self.weight"):
        %2: f32[8, 128] = mul(%0, %1)
        %3: f32[8] = sum(%2, axes=(1,), keepdim=False)
        write %0 <- %2 in place
        return %3, %2 at input 0 + 0

    parse(show(graph)) == graph        for graphs (both levels, without regions) and kernels

At level aten an op that writes or aliases says so behind it: `writes %0`, `aliases %0`. Kernels are
spelled in `text_loop`, traces in `text_trace`, constants and types in `words`.
"""

from preheat.base.errors import UserError
from preheat.base.events import emit, wants
from preheat.ir.graph import Arg, Graph, Input, Item, Op, OutputAlias, Ref, Store
from preheat.ir.loop import Kernel
from preheat.ir.plan import Buffer, Call, KernelCall, LibraryCall, Output, Plan, ProductCall
from preheat.ir.text_loop import read_kernel, show_kernel
from preheat.ir.text_trace import show_trace
from preheat.ir.trace import Trace
from preheat.ir.words import Reader, show_arg, show_number, show_type


def show(noun: Graph | Kernel | Plan | Trace) -> str:
    """The text of a graph, kernel, plan or trace."""
    if isinstance(noun, Graph):
        return show_graph(noun)
    if isinstance(noun, Kernel):
        return show_kernel(noun)
    if isinstance(noun, Plan):
        return show_plan(noun)
    return show_trace(noun, show_graph)


def stage(name: str, noun: Graph | Plan | Trace) -> None:
    """Tells who listens for stages what step `name` has given."""
    if wants("stage"):
        emit("stage", name=name, text=show(noun))


def parse(text: str) -> Graph | Kernel:
    """The graph or kernel that `show` gave `text` for. Raises UserError with the line."""
    reader = Reader(text)
    if reader.peek() == "graph":
        noun = _read_graph(reader)
    elif reader.peek() == "kernel":
        noun = read_kernel(reader)
    else:
        raise UserError(f"IR text begins with 'graph' or 'kernel', not {reader.peek()!r}")
    if reader.peek():
        reader.fail(f"unexpected {reader.peek()!r}")
    return noun


# ---------------------------------------------------------------------------- graphs to text
def show_graph(graph: Graph, indent: str = "") -> str:
    lines = [f"{indent}graph {graph.level} ({', '.join(map(_show_input, graph.inputs))}):"]
    for op in graph.ops:
        lines.append(f"{indent}    {show_op(op)}")
        lines += [show_graph(region, indent + "        ") for region in op.regions]
    for target, value in graph.writes:
        place = " in place" if target in graph.in_place else ""
        lines.append(f"{indent}    write %{target} <- %{value}{place}")
        lines += [
            f"{indent}        {_show_store(store)}"
            for store in graph.stores
            if store.target == target
        ]
    if graph.grads:
        lines.append(f"{indent}    grads {', '.join(f'%{value}' for value in graph.grads)}")
    aliases = graph.output_aliases or (OutputAlias(),) * len(graph.outputs)
    ends = [
        f"%{value}{' grad' * (place in graph.grad_outputs)}{_show_alias(alias)}"
        for place, (value, alias) in enumerate(zip(graph.outputs, aliases))]
    lines.append(f"{indent}    return {', '.join(ends)}".rstrip())
    return "\n".join(lines)


def show_op(op: Op) -> str:
    """One op on one line."""
    results = ", ".join(f"%{r}: {show_type(t)}" for r, t in zip(op.results, op.types))
    arguments = [show_arg(a) for a in op.args] + [f"{key}={show_arg(arg)}" for key, arg in op.attrs]
    text = f"{op.name}({', '.join(arguments)})"
    if results:
        text = f"{results} = {text}"
    if op.writes:
        text += " writes " + ", ".join(f"%{w}" for w in op.writes)
    if any(a != -1 for a in op.aliases):
        text += " aliases " + ", ".join("-" if a == -1 else f"%{a}" for a in op.aliases)
    text += " grad" if op.is_grad_enabled else ""
    return text + (f" region {op.region}" if op.region else "")


def _show_input(input: Input) -> str:
    name = f' "{input.name}"' if input.name else ""
    shared = f" alias {input.alias_set}" if input.alias_set >= 0 else ""
    return f"%{input.id}: {show_type(input.type)}{name}{shared}"


def _show_store(store: Store) -> str:
    strides = ", ".join(map(show_number, store.strides))
    return f"store %{store.value} at {show_number(store.offset)} {{{strides}}} makes %{store.state}"


def _show_alias(alias: OutputAlias) -> str:
    if alias.kind == "fresh":
        return ""
    return f" at {alias.kind} {alias.base} + {show_number(alias.offset)}{' detached' * alias.is_detached}"


# ---------------------------------------------------------------------------- text to graphs
def _read_graph(reader: Reader) -> Graph:
    reader.take("graph")
    level = reader.take()
    reader.take("(")
    inputs = reader.many(lambda: _read_input(reader), ")")
    reader.take(":")
    ops, writes, in_place, stores = [], [], [], []
    while reader.peek() not in ("return", "write", "grads"):
        ops.append(_read_op(reader))
    while reader.accept("write"):
        target = reader.value()
        reader.take("<-")
        writes.append((target, reader.value()))
        if reader.accept("in"):
            reader.take("place")
            in_place.append(target)
        while reader.accept("store"):
            stores.append(_read_store(reader, target))
    grads = _read_values(reader) if reader.accept("grads") else ()
    reader.take("return")
    outputs, aliases, grad_outputs = [], [], []
    while reader.peek() == "%":
        outputs.append(reader.value())
        if reader.accept("grad"):
            grad_outputs.append(len(outputs) - 1)
        aliases.append(_read_alias(reader))
        reader.accept(",")
    if all(alias.kind == "fresh" for alias in aliases):
        aliases = []
    return Graph(
        level,
        inputs,
        tuple(ops),
        tuple(outputs),
        tuple(writes),
        tuple(aliases),
        tuple(in_place),
        tuple(stores),
        grads=grads,
        grad_outputs=tuple(grad_outputs),
    )


def _read_input(reader: Reader) -> Input:
    value = reader.value()
    reader.take(":")
    type = reader.type()
    name = reader.take()[1:-1] if reader.peek()[:1] == '"' else ""
    return Input(value, type, name, reader.integer() if reader.accept("alias") else -1)


def _read_store(reader: Reader, target: int) -> Store:
    value = reader.value()
    reader.take("at")
    offset = reader.number()
    reader.take("{")
    strides = reader.many(reader.number, "}")
    reader.take("makes")
    return Store(target, reader.value(), value, offset, strides)


def _read_alias(reader: Reader) -> OutputAlias:
    if not reader.accept("at"):
        return OutputAlias()
    kind, base = reader.take(), reader.integer()
    reader.take("+")
    return OutputAlias(kind, base, reader.number(), reader.accept("detached"))


def _read_op(reader: Reader) -> Op:
    results, types = [], []
    while reader.peek() == "%":
        results.append(reader.value())
        reader.take(":")
        types.append(reader.type())
        if not reader.accept(","):
            reader.take("=")
            break
    name = reader.take()
    while reader.accept("."):
        name += "." + reader.take()
    reader.take("(")
    entries = reader.many(lambda: _read_argument(reader), ")")
    args = tuple(arg for key, arg in entries if key is None)
    attrs = tuple((key, arg) for key, arg in entries if key is not None)
    writes = _read_values(reader) if reader.accept("writes") else ()
    aliases = _read_values(reader) if reader.accept("aliases") else ()
    is_grad_enabled = reader.accept("grad")
    region = reader.integer() if reader.accept("region") else 0
    return Op(
        name, args, tuple(results), tuple(types), attrs, writes, aliases, is_grad_enabled, region=region)


def _read_argument(reader: Reader) -> tuple[str | None, Arg]:
    start = reader.place
    name = reader.take()
    if name.isidentifier() and reader.accept("="):
        return name, reader.arg()
    reader.place = start
    return None, reader.arg()


def _read_values(reader: Reader) -> tuple[int, ...]:
    found = [-1 if reader.accept("-") else reader.value()]
    while reader.accept(","):
        found.append(-1 if reader.accept("-") else reader.value())
    return tuple(found)


# ---------------------------------------------------------------------------- plans to text
def show_plan(plan: Plan) -> str:
    arena = show_number(plan.arena_bytes)
    lines = [f"plan ({len(plan.inputs)} inputs, {len(plan.outputs)} outputs, arena {arena} bytes)"]
    lines += [f"  b{number} {_show_buffer(buffer)}" for number, buffer in enumerate(plan.buffers)]
    lines += [f"  {_show_call(call, plan)}" for call in plan.calls]
    lines += [f"  return {_show_output(output)}" for output in plan.outputs]
    lines += ["  " + line for kernel in plan.kernels for line in show_kernel(kernel).splitlines()]
    return "\n".join(lines)


def _show_buffer(buffer: Buffer) -> str:
    base = f" of b{buffer.base}" if buffer.kind == "view" else ""
    return f"{buffer.kind} {show_number(buffer.index)}{base}   {show_type(buffer.type)}"


def _show_call(call: Call, plan: Plan) -> str:
    if isinstance(call, KernelCall):
        buffers = ", ".join(f"b{b}" for b in call.buffers)
        moved = f"   {show_number(call.bytes)} bytes" if call.bytes else ""
        name, extent = plan.kernels[call.kernel].name, show_number(call.extent)
        return f"kernel {name}({buffers}) over {extent}{moved}"
    if isinstance(call, ProductCall):
        return f"product b{call.out} = b{call.a} @ b{call.b}" + (
            f" + {call.beta}*b{call.out}" if call.beta else ""
        )
    assert isinstance(call, LibraryCall), call
    results = ", ".join("-" if r == -1 else f"b{r}" for r in call.results)
    arguments = [_in_buffers(a) for a in call.args] + [
        f"{k}={_in_buffers(a)}" for k, a in call.attrs
    ]
    return f"library {results} = {call.op}({', '.join(arguments)})"


def _in_buffers(arg: Arg) -> str:
    if isinstance(arg, Ref):
        return f"b{arg.id}"
    if isinstance(arg, Item):
        return f"item b{arg.id}"
    if isinstance(arg, tuple):
        return "(" + ", ".join(map(_in_buffers, arg)) + ")"
    return show_arg(arg)


def _show_output(output: Output) -> str:
    if output.alias:
        offset = show_number(output.offset)
        return (f"{show_type(output.type)} at {output.alias} {output.base} + {offset}"
                f"{' detached' * output.is_detached}")
    return f"{show_type(output.type)} b{output.buffer}"
