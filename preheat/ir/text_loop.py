"""Text of kernels, in both directions.

    kernel softmax_3(%p0: f32 in, %p1: f32 out) over i0:512 parallel
      stage j:128 vector
        v0: f32 = load p0[i0*128 + j]
        v1: f32 = reduce max v0
      stage j:128 vector
        v2: f32 = load p0[i0*128 + j] if v9 else 0.0
        v3: f32 = sub v2, v1 keep
        store p1[i0*128 + j] = v3: f32
        check index v8

    read_kernel(Reader(show_kernel(kernel))) == kernel

Requires what `loop.LoopOp` documents: fields that an op does not use have their defaults.
"""

from preheat.ir.loop import Axis, Index, Kernel, LoopOp, Param, Stage
from preheat.ir.types import SHORT
from preheat.ir.words import Reader, short, show_number


def show_kernel(kernel: Kernel) -> str:
    params = ", ".join(_show_param(number, param) for number, param in enumerate(kernel.params))
    axes = ", ".join(_show_outer(kernel, place, axis) for place, axis in enumerate(kernel.axes))
    shared = f" by {kernel.shared}{' behind' if kernel.is_behind else ''}" if kernel.shared else ""
    lines = [f"kernel {kernel.name}({params})" + (f" over {axes}{shared}" if axes else "")]
    for stage in kernel.stages:
        axes = ", ".join(f"{axis.name}:{show_number(axis.extent)}" for axis in stage.axes)
        vector = " vector" if stage.axes and kernel.lane is None else ""
        lines.append(f"  stage {axes}{vector}".rstrip())
        lines += [f"    {_show_loop_op(op)}" for op in stage.body]
    return "\n".join(lines)


def _show_param(number: int, param: Param) -> str:
    name = f' "{param.name}"' if param.name else ""
    return f"%p{number}: {short(param.dtype)} {param.role}{name}"


def _show_outer(kernel: Kernel, place: int, axis: Axis) -> str:
    marks = (" parallel" if place < kernel.parallel else "") + (
        " lane" if axis.name == kernel.lane else ""
    )
    return f"{axis.name}:{show_number(axis.extent)}{marks}"


def _show_loop_op(op: LoopOp) -> str:
    mask = "" if op.mask is None else f" if v{op.mask}"
    other = "" if op.mask is None or op.other is None else f" else {show_number(op.other)}"
    keep = " keep" if op.keep else ""
    args = ", ".join(f"v{a}" for a in op.args)
    if op.op == "store":
        how = f"{op.how} " if op.how else ""
        return f"store {how}p{op.param}[{_show_index(op.index)}] = {args}: {short(op.dtype)}{mask}"
    if op.op == "check":
        return f"check {op.how} {args}"
    text = {
        "load": (
            f"load p{op.param}[{_show_index(op.index)}]{mask}{other}" if op.op == "load" else ""
        ),
        "const": f"const {show_number(op.other)}" if op.op == "const" else "",
        "axis": f"axis {op.axis}",
        "uniform": (
            f"uniform {args} stream {op.other} at [{_show_index(op.index)}]"
            if op.op == "uniform" else ""
        ),
        "reduce": f"reduce {op.how} {args}",
    }.get(op.op, f"{op.op} {args}")
    return f"v{op.id}: {short(op.dtype)} = {text}{keep}"


def _show_index(index: Index) -> str:
    parts = []
    for term, stride in index.terms:
        name = f"v{term}" if isinstance(term, int) else term
        parts.append(
            name if stride == 1 and isinstance(stride, int) else f"{name}*{show_number(stride)}"
        )
    if not parts or index.base != 0:
        base = show_number(index.base)
        parts.append(f"({base})" if base[0].isalpha() else base)  # a bare name would be an axis
    return " + ".join(parts)


# ---------------------------------------------------------------------------- text to kernels
def read_kernel(reader: Reader) -> Kernel:
    reader.take("kernel")
    name = reader.take()
    reader.take("(")
    params = reader.many(lambda: _read_param(reader), ")")
    axes, parallel, lane, shared, is_behind = [], 0, None, 0, False
    if reader.accept("over"):
        while True:
            axes.append(_read_axis(reader))
            parallel += reader.accept("parallel")
            lane = axes[-1].name if reader.accept("lane") else lane
            if not reader.accept(","):
                break
        shared = reader.number() if reader.accept("by") else 0
        is_behind = shared > 0 and reader.accept("behind")
    stages = []
    while reader.accept("stage"):
        stages.append(_read_stage(reader))
    return Kernel(name, params, tuple(axes), tuple(stages), parallel, lane, shared, is_behind)


def _read_param(reader: Reader) -> Param:
    reader.take("%"), reader.take(), reader.take(":")
    dtype, role = reader.take(), reader.take()
    return Param(
        SHORT.get(dtype, dtype), role, reader.take()[1:-1] if reader.peek()[:1] == '"' else ""
    )


def _read_axis(reader: Reader) -> Axis:
    name = reader.take()
    reader.take(":")
    return Axis(name, reader.number())


def _is_value(token: str) -> bool:
    return token[:1] == "v" and token[1:].isdigit()


def _read_stage(reader: Reader) -> Stage:
    axes = []
    # A stage without axes goes on with its body: "v0: f32 = ...", "store" or "check".
    while not _is_value(reader.peek()) and reader.peek() not in ("store", "check", "stage", ""):
        axes.append(_read_axis(reader))
        if not reader.accept(","):
            break
    reader.accept("vector")
    body = []
    while _is_value(reader.peek()) or reader.peek() in ("store", "check"):
        body.append(_read_loop_op(reader))
    return Stage(tuple(axes), tuple(body))


def _read_value(reader: Reader) -> int:
    token = reader.take()
    if not _is_value(token):
        reader.fail(f"expected a value, found {token!r}")
    return int(token[1:])


def _read_values(reader: Reader) -> tuple[int, ...]:
    found = []
    while _is_value(reader.peek()):
        found.append(_read_value(reader))
        if not reader.accept(","):
            break
    return tuple(found)


def _read_dtype(reader: Reader) -> str:
    token = reader.take()
    return SHORT.get(token, token)


def _read_loop_op(reader: Reader) -> LoopOp:
    if reader.accept("store"):
        how = "sum" if reader.accept("sum") else ""
        param, index = _read_place(reader)
        reader.take("=")
        value = _read_value(reader)
        reader.take(":")
        dtype = _read_dtype(reader)
        mask = _read_value(reader) if reader.accept("if") else None
        return LoopOp("store", -1, dtype, (value,), param, index, mask, how=how)
    if reader.accept("check"):
        how = reader.take()
        return LoopOp("check", -1, "bool", _read_values(reader), how=how)
    value = _read_value(reader)
    reader.take(":")
    dtype = _read_dtype(reader)
    reader.take("=")
    return _read_definition(reader, value, dtype)


def _read_definition(reader: Reader, value: int, dtype: str) -> LoopOp:
    name = reader.take()
    fields: dict = {}
    if name == "load":
        fields["param"], fields["index"] = _read_place(reader)
        fields["mask"] = _read_value(reader) if reader.accept("if") else None
        fields["other"] = reader.number() if reader.accept("else") else None
    elif name == "const":
        fields["other"] = reader.number()
    elif name == "axis":
        fields["axis"] = reader.take()
    elif name == "reduce":
        fields["how"] = reader.take()
    if name not in ("load", "const", "axis"):
        fields["args"] = _read_values(reader)
    if name == "uniform":
        reader.take("stream")
        fields["other"] = reader.number()
        reader.take("at")
        fields["index"] = _read_index(reader)
    return LoopOp(name, value, dtype, keep=reader.accept("keep"), **fields)


def _read_place(reader: Reader):
    return int(reader.take()[1:]), _read_index(reader)


def _read_index(reader: Reader) -> Index:
    reader.take("[")
    base, terms = 0, []
    while not reader.accept("]"):
        token = reader.peek()
        if token.isidentifier() and token not in ("inf", "nan"):
            reader.take()
            term = int(token[1:]) if _is_value(token) else token
            terms.append((term, reader.number() if reader.accept("*") else 1))
        else:
            base = reader.number()
        reader.accept("+")
    return Index(base, tuple(terms))
