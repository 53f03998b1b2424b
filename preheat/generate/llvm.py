"""LLVM IR text: typed values, instructions, loops. No knowledge of kernels or of mathematics.

    b = Builder(target)
    x = b.load(pointer, "float", 16)           %v1 = load <16 x float>, ptr %v0, align 4
    y = b.fadd(x, b.constant(1.0, x))          %v2 = fadd <16 x float> %v1, splat (float 0x3FF0...)

Every method yields the `Value` it made and checks that operands agree. What a target lacks (fma,
rounding) is spelled out here, so that no instruction ever turns into a library call: an image
imports nothing. Source: LLVM Language Reference, release 22.
"""

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

from preheat.ir.plan import Target

BITS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "float": 32, "double": 64}
INTEGER_OF = {"float": "i32", "double": "i64"}
MANTISSA = {"float": 23, "double": 52}
EXPONENT_BIAS = {"float": 127, "double": 1023}


class Value(NamedTuple):
    """An SSA name or constant. `lanes` 0 is a plain scalar, n a vector `<n x element>`."""

    text: str
    element: str
    lanes: int

    @property
    def type(self) -> str:
        return f"<{self.lanes} x {self.element}>" if self.lanes else self.element

    @property
    def operand(self) -> str:
        return f"{self.type} {self.text}"

    @property
    def is_float(self) -> bool:
        return self.element in MANTISSA

    @property
    def is_constant(self) -> bool:
        """Whether every lane is the same known number."""
        return self.text.startswith("splat")

    @property
    def items(self) -> tuple[str, ...]:
        """The lanes of a constant that `vector` made, else nothing."""
        return tuple(self.text[1:-1].split(", ")) if self.text.startswith("<") else ()

    @property
    def is_nan(self) -> bool:
        """Whether it is known to be NaN."""
        return self.is_constant and ("0x7FF8" in self.text or "0xFFF8" in self.text)

    @property
    def is_zero(self) -> bool:
        """Whether it is known to be an integer zero."""
        return self.is_constant and self.text.endswith(" 0)")


def literal(number: int | float | bool, element: str) -> str:
    """`number` as an LLVM constant of type `element`; integers wrap, floats round to nearest."""
    if element == "i1":
        return "true" if number else "false"
    if element in MANTISSA:
        number = float(number)
        if element == "float":
            number = round_to_float32(number)
        # LLVM writes a float as the bits of the double that equals it
        return f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"
    bits = BITS[element]
    wrapped = int(number) & ((1 << bits) - 1)
    return str(wrapped - (1 << bits) if wrapped >> (bits - 1) else wrapped)


def round_to_float32(number: float) -> float:
    """The nearest float32, infinite beyond the largest."""
    try:
        return struct.unpack("<f", struct.pack("<f", number))[0]
    except OverflowError:
        return float("inf") if number > 0 else float("-inf")


class Builder:
    """Writes one function. `lines` is its body so far; `declarations` are the intrinsics that it
    uses and `helpers` whole functions, as text."""

    def __init__(self, target: Target):
        self.target = target
        features = set(target.features)
        self.has_fma = target.arch == "aarch64" or "fma" in features
        self.has_rounding = target.arch == "aarch64" or "sse4.1" in features
        self.has_half = target.arch == "aarch64" or "f16c" in features
        self.has_masks = target.vector_bytes == 64
        self.lines: list[str] = []
        self.allocations: list[str] = []
        self.declarations: set[str] = set()
        self.helpers: set[str] = set()
        self.block = "entry"
        self._count = 0

    # values and instructions

    def name(self, stem: str) -> str:
        self._count += 1
        return f"{stem}{self._count}"

    def emit(self, line: str) -> None:
        self.lines.append("  " + line)

    def value(self, instruction: str, element: str, lanes: int) -> Value:
        """The result of `instruction`, of the type that the caller knows it has."""
        result = Value("%" + self.name("v"), element, lanes)
        self.emit(f"{result.text} = {instruction}")
        return result

    def constant(self, number: int | float | bool, like: Value) -> Value:
        """`number` in every lane of the type of `like`."""
        return self.splat_of(number, like.element, like.lanes)

    def splat_of(self, number: int | float | bool, element: str, lanes: int) -> Value:
        text = literal(number, element)
        return Value(f"splat ({element} {text})" if lanes else text, element, lanes)

    def vector(self, numbers: Sequence[int], element: str) -> Value:
        """The constant vector of `numbers`, one a lane."""
        items = ", ".join(f"{element} {literal(n, element)}" for n in numbers)
        return Value(f"<{items}>", element, len(numbers))

    def integer(self, number: int) -> Value:
        """A plain i64."""
        return Value(str(number), "i64", 0)

    def plus(self, x: Value, y: Value) -> Value:
        """The sum of plain i64, folded when one is 0."""
        return y if x.text == "0" else x if y.text == "0" else self.binary("add", x, y)

    def times(self, x: Value, y: Value) -> Value:
        """The product of plain i64, folded when one is 0 or 1."""
        if x.text == "0" or y.text == "1":
            return x
        return y if y.text == "0" or x.text == "1" else self.binary("mul", x, y)

    def binary(self, name: str, x: Value, y: Value) -> Value:
        assert x.type == y.type, (name, x, y)
        return self.value(f"{name} {x.operand}, {y.text}", x.element, x.lanes)

    def fadd(self, x: Value, y: Value) -> Value:
        return self.binary("fadd", x, y)

    def fsub(self, x: Value, y: Value) -> Value:
        return self.binary("fsub", x, y)

    def fmul(self, x: Value, y: Value) -> Value:
        return self.binary("fmul", x, y)

    def fdiv(self, x: Value, y: Value) -> Value:
        return self.binary("fdiv", x, y)

    def fneg(self, x: Value) -> Value:
        return self.value(f"fneg {x.operand}", x.element, x.lanes)

    def compare(self, predicate: str, x: Value, y: Value) -> Value:
        """`fcmp` for floats (ogt, une ...), `icmp` for integers (sgt, eq ...)."""
        assert x.type == y.type, (predicate, x, y)
        kind = "fcmp" if x.is_float else "icmp"
        return self.value(f"{kind} {predicate} {x.operand}, {y.text}", "i1", x.lanes)

    def select(self, condition: Value, x: Value, y: Value) -> Value:
        assert x.type == y.type and condition.lanes == x.lanes, (condition, x, y)
        text = f"select {condition.operand}, {x.operand}, {y.operand}"
        return self.value(text, x.element, x.lanes)

    def convert(self, name: str, x: Value, element: str) -> Value:
        """A cast instruction by its LLVM name: sext, fptosi, bitcast ..."""
        result = Value("", element, x.lanes)
        return self.value(f"{name} {x.operand} to {result.type}", element, x.lanes)

    def intrinsic(self, name: str, *args: Value) -> Value:
        """`llvm.name` over the type of the first argument, which is also the result's."""
        first = args[0]
        suffix = _suffix(first)
        types = ", ".join(a.type for a in args)
        self.declarations.add(f"declare {first.type} @llvm.{name}.{suffix}({types})")
        operands = ", ".join(a.operand for a in args)
        call = f"call {first.type} @llvm.{name}.{suffix}({operands})"
        return self.value(call, first.element, first.lanes)

    def bits(self, x: Value) -> Value:
        """The bit pattern of a float, as an integer."""
        return self.convert("bitcast", x, INTEGER_OF[x.element])

    def from_bits(self, x: Value, element: str) -> Value:
        return self.convert("bitcast", x, element)

    # lanes

    def splat(self, x: Value, lanes: int) -> Value:
        """`x` (one lane) in each of `lanes` lanes; a value that has them already is itself."""
        if x.lanes == lanes:
            return x
        assert x.lanes in (0, 1), x
        if x.is_constant:
            return Value(x.text, x.element, lanes)
        if x.lanes == 0:
            text = f"insertelement <1 x {x.element}> poison, {x.operand}, i64 0"
            x = self.value(text, x.element, 1)
            if lanes == 1:
                return x
        mask = f"<{lanes} x i32> zeroinitializer"
        return self.value(f"shufflevector {x.operand}, {x.type} poison, {mask}", x.element, lanes)

    def lane(self, x: Value, number: int = 0) -> Value:
        """One lane as a plain scalar."""
        return self.value(f"extractelement {x.operand}, i64 {number}", x.element, 0)

    def part(self, x: Value, start: int, lanes: int) -> Value:
        """`lanes` lanes of `x` from `start`."""
        if x.lanes == lanes:
            return x
        return self.shuffle(x, range(start, start + lanes))

    def shuffle(self, x: Value, lanes: Sequence[int]) -> Value:
        if x.items:
            return Value(f"<{', '.join(x.items[k] for k in lanes)}>", x.element, len(lanes))
        return self._picked(x, Value("poison", x.element, x.lanes), lanes)

    def _picked(self, x: Value, y: Value, lanes: Sequence[int]) -> Value:
        """Lanes of `x` (from 0 on) and of `y` (from x.lanes on), in any order."""
        order = ", ".join(f"i32 {i}" for i in lanes)
        mask = f"<{len(lanes)} x i32> <{order}>"
        text = f"shufflevector {x.operand}, {y.operand}, {mask}"
        return self.value(text, x.element, len(lanes))

    def iota(self, lanes: int, step: int = 1) -> Value:
        """0, step, 2*step ... as i64."""
        return self.vector([i * step for i in range(lanes)], "i64")

    def join(self, parts: Sequence[Value]) -> Value:
        """The lanes of all `parts` (as many as a power of two), one after the other."""
        while len(parts) > 1:
            pairs = zip(parts[::2], parts[1::2])
            parts = [self._picked(x, y, range(x.lanes + y.lanes)) for x, y in pairs]
        return parts[0]

    def transpose(self, rows: Sequence[Value]) -> list[Value]:
        """A square of values, rows as columns: rows are interleaved with those half a square below,
        log2(rows) times (each time turns the bits of row and column by one place)."""
        rows, side = list(rows), rows[0].lanes
        for _ in range(side.bit_length() - 1):
            pairs = zip(rows[:side // 2], rows[side // 2:])
            rows = [half for x, y in pairs for half in self._interleaved(x, y)]
        return rows

    def _interleaved(self, x: Value, y: Value) -> list[Value]:
        """x0 y0 x1 y1 ..., as two vectors."""
        order = [lane for k in range(x.lanes) for lane in (k, k + x.lanes)]
        return [self._picked(x, y, order[:x.lanes]), self._picked(x, y, order[x.lanes:])]

    def any(self, condition: Value) -> Value:
        """A plain i1: whether some lane is true."""
        if condition.lanes == 1:
            return self.lane(condition)
        name = f"@llvm.vector.reduce.or.v{condition.lanes}i1"
        self.declarations.add(f"declare i1 {name}({condition.type})")
        return self.value(f"call i1 {name}({condition.operand})", "i1", 0)

    # arithmetic that some targets lack

    def fma(self, x: Value, y: Value, z: Value) -> Value:
        """x*y + z, rounded once (on targets without fma: to within a rounding of the last bit)."""
        if self.has_fma:
            return self.intrinsic("fma", x, y, z)
        if x.element == "float":
            wide = [self.convert("fpext", v, "double") for v in (x, y, z)]
            return self.convert("fptrunc", self.fadd(self.fmul(wide[0], wide[1]), wide[2]), "float")
        high, low = self._exact_product(x, y)
        total = self.fadd(high, z)
        # Knuth's two-sum: what the addition lost, which is not finite when the total is not
        back = self.fsub(total, high)
        lost = self.fadd(self.fsub(high, self.fsub(total, back)), self.fsub(z, back))
        rest = self.fadd(lost, low)
        # a total of -0 or infinity stays: `one` is false for a rest of 0 or NaN
        is_some = self.compare("one", rest, self.constant(0.0, rest))
        return self.select(is_some, self.fadd(total, rest), total)

    def _exact_product(self, x: Value, y: Value) -> tuple[Value, Value]:
        """Dekker's product of doubles: high + low == x*y exactly."""
        halves = []
        for v in (x, y):
            scaled = self.fmul(v, self.constant(134217729.0, v))
            upper = self.fsub(scaled, self.fsub(scaled, v))
            halves.append((upper, self.fsub(v, upper)))
        (xh, xl), (yh, yl) = halves
        high = self.fmul(x, y)
        low = self.fsub(self.fmul(xh, yh), high)
        low = self.fadd(self.fadd(low, self.fmul(xh, yl)), self.fmul(xl, yh))
        return high, self.fadd(low, self.fmul(xl, yl))

    def scaled(self, x: Value, n: Value) -> Value | None:
        """x * 2**n in 512-bit registers (vscalef: denormals and overflow come out as they should);
        None where there is no such instruction."""
        kind, mask, lanes = ("ps", "i16", 16) if x.element == "float" else ("pd", "i8", 8)
        if not self.has_masks or x.lanes % lanes:
            return None
        register = f"<{lanes} x {x.element}>"
        name = f"@llvm.x86.avx512.mask.scalef.{kind}.512"
        types = ", ".join((register, register, register, mask, "i32"))
        self.declarations.add(f"declare {register} {name}({types})")
        parts = []
        for start in range(0, x.lanes, lanes):
            operands = ", ".join(self.part(v, start, lanes).operand for v in (x, n))
            operands += f", {register} zeroinitializer, {mask} -1, i32 4"
            parts.append(self.value(f"call {register} {name}({operands})", x.element, lanes))
        return self.join(parts)

    def fabs(self, x: Value) -> Value:
        return self.intrinsic("fabs", x)

    def copysign(self, magnitude: Value, sign: Value) -> Value:
        return self.intrinsic("copysign", magnitude, sign)

    def round_even(self, x: Value) -> Value:
        """To the nearest integer, ties to even; keeps the sign of zero."""
        if self.has_rounding:
            return self.intrinsic("roundeven", x)
        # below 2**mantissa, adding and taking away that power rounds to an integer
        power = self.constant(2.0 ** MANTISSA[x.element], x)
        magnitude = self.fabs(x)
        rounded = self.fsub(self.fadd(magnitude, power), power)
        is_small = self.compare("olt", magnitude, power)
        return self.copysign(self.select(is_small, rounded, magnitude), x)

    def floor(self, x: Value) -> Value:
        if self.has_rounding:
            return self.intrinsic("floor", x)
        near = self.round_even(x)
        less = self.fsub(near, self.constant(1.0, x))
        return self.copysign(self.select(self.compare("ogt", near, x), less, near), x)

    def ceil(self, x: Value) -> Value:
        if self.has_rounding:
            return self.intrinsic("ceil", x)
        return self.fneg(self.floor(self.fneg(x)))

    def trunc(self, x: Value) -> Value:
        if self.has_rounding:
            return self.intrinsic("trunc", x)
        return self.copysign(self.floor(self.fabs(x)), x)

    # memory

    def offset(self, pointer: Value, elements: Value, element: str) -> Value:
        """`pointer` moved by `elements` (i64, scalar or a vector of them) elements."""
        text = f"getelementptr {element}, {pointer.operand}, {elements.operand}"
        return self.value(text, "ptr", elements.lanes)

    def load(self, pointer: Value, element: str, lanes: int) -> Value:
        result = Value("", element, lanes)
        align = max(1, BITS[element] // 8)
        return self.value(f"load {result.type}, {pointer.operand}, align {align}", element, lanes)

    def store(self, x: Value, pointer: Value) -> None:
        self.emit(f"store {x.operand}, {pointer.operand}, align {max(1, BITS[x.element] // 8)}")

    def masked_load(self, pointer: Value, mask: Value, other: Value) -> Value:
        """Contiguous elements where `mask`, else lanes of `other`; false lanes touch no memory."""
        name, where = f"@llvm.masked.load.{_suffix(other)}.p0", _aligned(pointer, other)
        self.declarations.add(f"declare {other.type} {name}(ptr, {mask.type}, {other.type})")
        call = f"call {other.type} {name}({where}, {mask.operand}, {other.operand})"
        return self.value(call, other.element, other.lanes)

    def masked_store(self, x: Value, pointer: Value, mask: Value) -> None:
        """Contiguous elements where `mask`; other lanes touch no memory. One that is known to be alone
        is stored as a scalar: of a narrowed vector, LLVM 22 would store it as wide as it was before
        (avx512bw: trunc to i16, then a masked store of lane 0, became a store of 32 bits)."""
        lanes = [k for k, item in enumerate(mask.items) if item == "i1 true"]
        if len(lanes) == 1:
            where = self.offset(pointer, self.integer(lanes[0]), x.element) if lanes[0] else pointer
            return self.store(self.lane(x, lanes[0]), where)
        name, where = f"@llvm.masked.store.{_suffix(x)}.p0", _aligned(pointer, x)
        self.declarations.add(f"declare void {name}({x.type}, ptr, {mask.type})")
        self.emit(f"call void {name}({x.operand}, {where}, {mask.operand})")

    def gather(self, pointers: Value, mask: Value, other: Value) -> Value:
        """One element a lane from a vector of pointers, where `mask`."""
        name = f"@llvm.masked.gather.{_suffix(other)}.v{other.lanes}p0"
        types = f"{pointers.type}, {mask.type}, {other.type}"
        self.declarations.add(f"declare {other.type} {name}({types})")
        operands = f"{_aligned(pointers, other)}, {mask.operand}, {other.operand}"
        return self.value(f"call {other.type} {name}({operands})", other.element, other.lanes)

    def scatter(self, x: Value, pointers: Value, mask: Value) -> None:
        name = f"@llvm.masked.scatter.{_suffix(x)}.v{x.lanes}p0"
        self.declarations.add(f"declare void {name}({x.type}, {pointers.type}, {mask.type})")
        self.emit(f"call void {name}({x.operand}, {_aligned(pointers, x)}, {mask.operand})")

    def scratch(self, element: str, count: int, more: Value | None = None) -> Value:
        """A block of `count` elements on the stack, made once a call of the function, and of `more`
        besides, which `allocations` have loaded."""
        result = Value("%" + self.name("s"), "ptr", 0)
        if more is None:
            self.allocations.append(f"  {result.text} = alloca [{count} x {element}], align 64")
            return result
        whole = "%" + self.name("v")
        self.allocations += [
            f"  {whole} = add i64 {more.text}, {count}",
            f"  {result.text} = alloca {element}, i64 {whole}, align 64"]
        return result

    # control

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")
        self.block = name

    def loop(
        self, start: Value, stop: Value, step: int, carried: Sequence[Value],
        body: Callable[[Value, list[Value]], Sequence[Value]], may_be_empty: bool = False,
    ) -> list[Value]:
        """`body(position, carried) -> carried` for position = start, start + step ... below stop.

        Yields what is carried out. Runs at least once unless `may_be_empty`.
        """
        number = self.name("")
        head, out, before = f"loop{number}", f"done{number}", self.block
        position = Value(f"%i{number}", "i64", 0)
        inside = [v._replace(text=f"%c{number}_{k}") for k, v in enumerate(carried)]
        if may_be_empty:
            enters = self.compare("slt", start, stop)
            self.emit(f"br {enters.operand}, label %{head}, label %{out}")
        else:
            self.emit(f"br label %{head}")
        self.label(head)
        phis_at = len(self.lines)
        after = list(body(position, inside))
        following = self.value(f"add nsw i64 {position.text}, {step}", "i64", 0)
        again = self.compare("slt", following, stop)
        latch = self.block
        self.emit(f"br {again.operand}, label %{head}, label %{out}")
        self.lines[phis_at:phis_at] = [
            _phi(old, (start, before), (new, latch))
            for old, start, new in zip((position, *inside), (start, *carried), (following, *after))
        ]
        self.label(out)
        if not may_be_empty:
            return after
        results = [v._replace(text=f"%r{number}_{k}") for k, v in enumerate(carried)]
        self.lines += [_phi(r, (c, before), (a, latch)) for r, c, a in zip(results, carried, after)]
        return results

    def when(
        self, condition: Value, body: Callable[[], Sequence[Value]], otherwise: Sequence[Value] = ()
    ) -> list[Value]:
        """The values of `body`, which runs only if `condition` (a plain i1), else `otherwise`."""
        number, before = self.name(""), self.block
        then, out = f"then{number}", f"join{number}"
        self.emit(f"br {condition.operand}, label %{then}, label %{out}")
        self.label(then)
        values = list(body())
        end = self.block
        self.emit(f"br label %{out}")
        self.label(out)
        results = [v._replace(text=f"%w{number}_{k}") for k, v in enumerate(otherwise)]
        self.lines += [
            _phi(r, (v, end), (o, before)) for r, v, o in zip(results, values, otherwise)
        ]
        return results


def _suffix(x: Value) -> str:
    element = {"float": "f32", "double": "f64", "half": "f16"}.get(x.element, x.element)
    return f"v{x.lanes}{element}" if x.lanes else element


def _aligned(pointer: Value, accessed: Value) -> str:
    """`pointer` (one, or one a lane) as an operand that promises the element's alignment."""
    return f"{pointer.type} align {BITS[accessed.element] // 8} {pointer.text}"


def _phi(result: Value, *arms: tuple[Value, str]) -> str:
    incoming = ", ".join(f"[ {value.text}, %{block} ]" for value, block in arms)
    return f"  {result.text} = phi {result.type} {incoming}"
