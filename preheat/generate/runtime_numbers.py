"""The native checker's arithmetic: Python's numbers where they fit into 64 bits.

    i64 @compute(i64 operation, i64 left, i64 right, ptr has)     the word; *has = 0 where it has none

`ir/rows.OPERATIONS` names the operations. Floats are IEEE doubles, each operation rounded once, as
Python's are. Integers divide to the floor. A conversion is exact or has no result. No function is
called: the code has no imports.
"""

import re

from preheat.ir.rows import OPERATIONS

_EXACT = 1 << 53  # up to here every integer is a double

# Each has %a and %b, or %x and %y as doubles, and leaves %r, or %f as a double; an i1 %ok where the
# result may not exist.
_INT = {
    "int_eq": "%t = icmp eq i64 %a, %b\n  %r = zext i1 %t to i64",
    "int_lt": "%t = icmp slt i64 %a, %b\n  %r = zext i1 %t to i64",
    "int_le": "%t = icmp sle i64 %a, %b\n  %r = zext i1 %t to i64",
    "and": "%r = and i64 %a, %b",
    "or": "%r = or i64 %a, %b",
    "int_min": "%t = icmp slt i64 %b, %a\n  %r = select i1 %t, i64 %b, i64 %a",
    "int_max": "%t = icmp sgt i64 %b, %a\n  %r = select i1 %t, i64 %b, i64 %a",
}
_CHECKED = {
    "int_add": "sadd", "int_sub": "ssub", "int_mul": "smul",
}
_FLOAT = {
    "float_add": "%f = fadd double %x, %y", "float_sub": "%f = fsub double %x, %y",
    "float_mul": "%f = fmul double %x, %y", "float_neg": "%f = fneg double %x",
    "float_abs": "%f = call double @llvm.fabs.f64(double %x)",
    "float_min": "%t = fcmp olt double %y, %x\n  %f = select i1 %t, double %y, double %x",
    "float_max": "%t = fcmp ogt double %y, %x\n  %f = select i1 %t, double %y, double %x",
    "float_truediv": "%ok = fcmp une double %y, 0.0\n  %f = fdiv double %x, %y",
    "float_sqrt": "%ok = fcmp uge double %x, 0.0\n"
                  "  %f = call double @llvm.sqrt.f64(double %x)",
}
_READ = {
    "single_at": "%p = inttoptr i64 %a to ptr\n  %s = load float, ptr %p, align 1\n"
                 "  %f = fpext float %s to double",
    "double_at": "%p = inttoptr i64 %a to ptr\n  %r = load i64, ptr %p, align 1",
    "single": "%s = fptrunc double %x to float\n  %f = fpext float %s to double",
    "wrapper_class": """%p = inttoptr i64 %a to ptr
  %tagged = load i64, ptr %p, align 1
  %object = and i64 %tagged, -2
  %some = icmp ne i64 %object, 0
  %class.at = add i64 %object, 8
  %safe = select i1 %some, i64 %class.at, i64 %a
  %class.ptr = inttoptr i64 %safe to ptr
  %class = load i64, ptr %class.ptr, align 1
  %r = select i1 %some, i64 %class, i64 %b""",
}
_COMPARED = {"float_eq": "oeq", "float_lt": "olt", "float_le": "ole"}


def _divided(result: str) -> str:
    """Quotient or rest, rounded to the floor."""
    return f"""%zero = icmp eq i64 %b, 0
  %minus = icmp eq i64 %b, -1
  %odd = or i1 %zero, %minus
  %ok = xor i1 %odd, true
  %safe = select i1 %odd, i64 1, i64 %b
  %q = sdiv i64 %a, %safe
  %m = srem i64 %a, %safe
  %sign = xor i64 %m, %safe
  %differs = icmp slt i64 %sign, 0
  %some = icmp ne i64 %m, 0
  %low = and i1 %differs, %some
  %q.less = sub i64 %q, 1
  %m.more = add i64 %m, %safe
  %floordiv = select i1 %low, i64 %q.less, i64 %q
  %mod = select i1 %low, i64 %m.more, i64 %m
  %r = add i64 %{result}, 0"""


_OTHERS = {
    "int_floordiv": _divided("floordiv"),
    "int_mod": _divided("mod"),
    "int_abs": """%least = icmp eq i64 %a, -9223372036854775808
  %ok = xor i1 %least, true
  %below = icmp slt i64 %a, 0
  %negative = sub i64 0, %a
  %r = select i1 %below, i64 %negative, i64 %a""",
    "float_of_int": f"""%not.low = icmp sge i64 %a, -{_EXACT}
  %not.high = icmp sle i64 %a, {_EXACT}
  %ok = and i1 %not.low, %not.high
  %f = sitofp i64 %a to double""",
    "int_of_float": f"""%size = call double @llvm.fabs.f64(double %x)
  %ok = fcmp olt double %size, {float(_EXACT)!r}
  %held = select i1 %ok, double %x, double 0.0
  %r = fptosi double %held to i64""",
}


def numbers_text() -> str:
    """The LLVM IR text of `@compute`."""
    cases = "\n".join(f"    i64 {number}, label %{name}" for number, name in enumerate(OPERATIONS))
    blocks = "\n".join(_block(name) for name in OPERATIONS)
    return f"""
declare double @llvm.fabs.f64(double)
declare double @llvm.sqrt.f64(double)
declare {{ i64, i1 }} @llvm.sadd.with.overflow.i64(i64, i64)
declare {{ i64, i1 }} @llvm.ssub.with.overflow.i64(i64, i64)
declare {{ i64, i1 }} @llvm.smul.with.overflow.i64(i64, i64)

define internal i64 @compute(i64 %operation, i64 %a, i64 %b, ptr %has) {{
entry:
  %x = bitcast i64 %a to double
  %y = bitcast i64 %b to double
  store i64 1, ptr %has
  switch i64 %operation, label %none [
{cases}
  ]
{blocks}
none:
  store i64 0, ptr %has
  ret i64 0
}}
"""


def _block(name: str) -> str:
    """The basic block of one operation; its values bear its name."""
    if name in _CHECKED:
        body = f"""%pair = call {{ i64, i1 }} @llvm.{_CHECKED[name]}.with.overflow.i64(i64 %a, i64 %b)
  %r = extractvalue {{ i64, i1 }} %pair, 0
  %over = extractvalue {{ i64, i1 }} %pair, 1
  %ok = xor i1 %over, true"""
    elif name in _COMPARED:
        body = f"%t = fcmp {_COMPARED[name]} double %x, %y\n  %r = zext i1 %t to i64"
    else:
        body = _INT.get(name) or _FLOAT.get(name) or _READ.get(name) or _OTHERS[name]
    if "%f = " in body:
        body += "\n  %r = bitcast double %f to i64"
    if "%ok = " in body:
        body += "\n  %word = zext i1 %ok to i64\n  store i64 %word, ptr %has"
    body = _OWN.sub(rf"%{name}.\1", body)
    return f"{name}:\n  {body}\n  ret i64 %{name}.r\n"


_OWN = re.compile(r"%(?!(?:a|b|x|y|has)\b)([a-z][\w.]*)")  # a value of the block
