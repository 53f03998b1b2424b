"""Plans built by hand, with scalar kernels in LLVM text, for tests of the executors."""

import functools

from preheat.generate.build import host_target, image
from preheat.ir.loop import Kernel, Param
from preheat.ir.plan import Buffer, KernelCall, Output, Plan
from preheat.ir.types import TensorType, tensor
from preheat.run.load import Loaded, load

# Each kernel walks [begin, end) of float32 elements; `body` computes %r from the loaded %v<k>.
_BODIES = {
    "add": ("in in out", "%r = fadd float %v0, %v1"),
    "double": ("in out", "%r = fadd float %v0, %v0"),
    "relu": ("inout", "%c = fcmp olt float %v0, 0.0\n  %r = select i1 %c, float 0.0, float %v0"),
    "accumulate": ("inout in", "%r = fadd float %v0, %v1"),
    # raises bit 1 of the flag where the value is negative
    "checked": (
        "in out",
        "%c = fcmp olt float %v0, 0.0\n  %bit = zext i1 %c to i64\n  %old = load i64, ptr %flag\n"
        "  %new = or i64 %old, %bit\n  store i64 %new, ptr %flag\n  %r = fmul float %v0, 2.0",
    ),
}


@functools.cache
def hand_kernels() -> Loaded:
    """The kernels of `_BODIES`, loaded."""
    return load(image("\n".join(_text(name, *row) for name, row in _BODIES.items()), host_target()))


def kernel(name: str) -> Kernel:
    """The noun of a hand-written kernel."""
    roles = _BODIES[name][0].split()
    return Kernel(name, tuple(Param("float32", role, f"p{k}") for k, role in enumerate(roles)), (), ())


def f32(*sizes: int, strides=None) -> TensorType:
    return tensor("float32", sizes, strides)


def plan(inputs, buffers, kernels, calls, outputs, arena_bytes=0) -> Plan:
    """A plan from its parts; `kernels` by name, outputs as Output or buffer numbers."""
    buffers = tuple(Buffer(*b) for b in buffers)
    made = tuple(o if isinstance(o, Output) else Output(buffers[o].type, o) for o in outputs)
    return Plan(tuple(inputs), buffers, tuple(map(kernel, kernels)), tuple(calls), made, arena_bytes)


def add_plan(n: int = 1000) -> Plan:
    """out = (x + y) + (x + y), through an arena."""
    x = f32(n)
    return plan(
        (x, x), [("input", 0, x), ("input", 1, x), ("arena", 64, x), ("output", 0, x)], ["add"],
        [KernelCall(0, (0, 1, 2), n, 12 * n), KernelCall(0, (2, 2, 3), n, 12 * n)], [3], 64 + 4 * n,
    )


def _text(name: str, roles: str, body: str) -> str:
    params = roles.split()
    lines = []
    for k, role in enumerate(params):
        lines += [f"  %s{k} = getelementptr ptr, ptr %args, i64 {k}", f"  %p{k} = load ptr, ptr %s{k}"]
    loads = []
    for k, role in enumerate(params):
        loads.append(f"  %a{k} = getelementptr float, ptr %p{k}, i64 %i")
        if role != "out":
            loads.append(f"  %v{k} = load float, ptr %a{k}")
    target = next(k for k, role in enumerate(params) if role != "in")
    return f"""
define void @{name}(ptr %args, i64 %begin, i64 %end) {{
entry:
{chr(10).join(lines)}
  %sf = getelementptr ptr, ptr %args, i64 {len(params)}
  %flag = load ptr, ptr %sf
  %some = icmp slt i64 %begin, %end
  br i1 %some, label %loop, label %done
loop:
  %i = phi i64 [ %begin, %entry ], [ %next, %loop ]
{chr(10).join(loads)}
  {body}
  store float %r, ptr %a{target}
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}}"""
