"""Kernels to Triton source text: one function a kernel, one program a tile.

    kernel softmax_0 over i0:32768, stages j:4096           @triton.jit
      v0 = load p0[i0*4096 + j]; r1 = reduce max v0         def softmax_0(p0, p1):
      v2 = load ..; v3 = sub v2, r1; ..               ->        y = tl.program_id(0)
                                                                x = tl.arange(0, 4096)
                                                                v0 = tl.load(p0 + (y * 4096 + x))
                                                                v1 = tl.reduce(v0, 0, larger)
                                                                v2 = v0 - v1

The tile (`tiles`) says which positions a program has at once: `y` along the outer axes, `x` along
the walked ones. A value is a tensor over those of the two that it depends on, so what is the same
for a row is computed once a row. In a program that has whole rows a value computed again by a later
stage is the earlier one; else a stage with axes is a loop over blocks, whose reductions are
finished behind it. Masks are written where sizes do not divide, 64-bit offsets where memory reaches
that far.

Sizes are in the text where they are known. Others (`loop.sizes_of`) are arguments: s0, s1, .. behind the
parameters. Such a kernel has a source for each of its tiles (`rungs`), and one more that counts on sizes
being multiples of what a thread loads at once.

Guarantees: what a masked position computes is not stored, not reduced and not
checked. `check` is a device-side assertion, as in eager's own kernels; integer division is not
checked, as there. A kernel that folds walks rows one after another, with the sums of a row's
columns in registers. Parameters are pointers, and numbers that the host passes (`loop.NUMBER`).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from preheat.base.errors import InternalError
from preheat.generate import moments, triton_ops as ops
from preheat.generate.behind import write_behind
from preheat.generate.coarse import coarse_values
from preheat.generate.folding import folds_of, write_fold
from preheat.generate.moments import IN_ONE_WALK, MOMENTS, SQUARES, in_one_walk
from preheat.generate.online import EXP_SUM, accumulate, begin, exponential_sums, finish
from preheat.generate.products import product_of, write_kernel
from preheat.generate.quotients import is_parted, parts_of
from preheat.generate.rows import side_by_side
from preheat.generate.sharing import held, write_shared
from preheat.generate.sources import ALIGN_BYTES, Source, text_of
from preheat.generate.tiles import FAR, Tile, extent_of, is_far_tile
from preheat.generate.tuned import tile_of
from preheat.generate.whole import are_along, bounds_of, idle_ops, write_stages, write_walk
from preheat.ir.hinted import Hinted, holds
from preheat.ir.loop import NUMBER, Axis, Index, Kernel, LoopOp, Stage, sizes_of
from preheat.ir.ops import COMPARISONS
from preheat.ir.plan import Target
from preheat.ir.scalar import Dim, Number, Scalar


def source_of(kernel: Kernel, target: Target, tile: Tile | None = None) -> Source:
    """`kernel`, whose sizes are known, as Triton source, by the tile that the rules choose unless another
    is given."""
    tile = tile or tile_of(kernel, target)
    return Writer(kernel if tile.depth else side_by_side(kernel), tile).source()


class _Known(NamedTuple):
    """A value that has been computed: its name in the text, the positions it depends on ("yx",
    "y", "x" or ""), its dtype."""

    name: str
    dims: str
    dtype: str


class Writer:
    def __init__(
        self, kernel: Kernel, tile: Tile, multiples: Mapping[str, int] = MappingProxyType({}),
        between: tuple[int, int] = (0, 0),
    ):
        self.arguments = sizes_of(kernel)
        self.sizes = {str(size): f"s{k}" for k, size in enumerate(self.arguments)}
        self.numbers = dict(self.sizes)  # the text of each
        if between[0] == tile.columns and len(tile.along) == 1:
            self.numbers[str(tile.along[0].extent)] = str(tile.columns)
        self.multiples = multiples  # by expression
        self.between = between  # the fewest and the most elements of a row, 0 where that is not known
        self.bounds = bounds_of(kernel)
        self.within = {bound.mask: bound for bound in self.bounds}  # written as positions are, not op by op
        self.is_light = False  # blocks have an element for each lane of `moments`
        self.is_clamped = False  # `y` is a row that is there: masks are for what is stored
        self.coarse, self.totals = coarse_values(kernel), exponential_sums(kernel)
        self.kernel, self.tile = in_one_walk(kernel) if tile.is_looped else kernel, tile
        self.kernel = held(kernel) if tile.parts else self.kernel
        self.set_known(())  # `known`: masks that hold here; `idle`: values that nothing needs
        self.product = product_of(kernel) if tile.depth else None
        self.is_flat = tile.rows == 1  # `y` is one position: tensors have one dimension
        self.spread: int | None = None  # where tensors have one more dimension
        self.lines: list[str] = []
        self.functions: list[str] = []  # that the text calls, with their lines
        self.gate = ""  # a mask of all that is stored
        self.depth = 1
        self.has_check = False
        self.eviction = ""  # of what is loaded along a walk after which another comes, or before which
        self.values: dict[int, _Known] = {}
        self.same: dict[tuple, _Known] = {}  # what has been computed, by how
        self.stride = {axis.name: axis.extent for axis in (*tile.grid, *tile.down, *tile.along)}
        self.block, self.names = "program", {"y": "y", "x": "x"}  # the text of which block down it is, and of positions
        self.masks: dict[str, str] = {}
        made = [op for stage in self.kernel.stages for op in stage.body]
        self.online = {op.args[1] for op in made if op.how == EXP_SUM}  # their largest values
        self.is_fused = any(op.op == "times" for op in made)

    def source(self) -> Source:
        if self.product is not None:
            write_kernel(self, self.product)
        elif folds := folds_of(self.kernel):
            write_fold(self, folds)
        elif self.tile.parts:
            (write_behind if self.tile.is_behind else write_shared)(self)
        else:
            self._positions()
            write_stages(self)
        name = self.kernel.name
        parameters = [*(f"p{k}" for k in range(len(self.kernel.params))), *self.sizes.values()]
        signature = tuple(
            ("" if p.name == NUMBER else "*") + ops.signature(p.dtype, p.name == NUMBER)
            for p in self.kernel.params
        ) + tuple(map(ops.size_signature, self.arguments))
        multiples = (1 if p.name == NUMBER else ALIGN_BYTES for p in self.kernel.params)
        return Source(
            name, text_of(name, parameters, self.lines, self.functions), signature, self.tile, self.has_check, self.is_fused,
            (*multiples, *map(self._multiple, self.arguments)))

    def _multiple(self, size: Scalar) -> int:
        """What a size is a multiple of."""
        if size.type != "int" or not isinstance(size, Hinted):
            return 1
        known = next((n for n in (ALIGN_BYTES, 8, 4) if holds("eq", size % n, 0)), 1)
        return max(known, self.multiples.get(str(size), 1))

    def number(self, value: Number) -> str:
        """The text of a number of the kernel, which may be an argument."""
        return self.numbers[str(value)] if isinstance(value, Scalar) else repr(value)

    def count(self, axes: tuple[Axis, ...]) -> str:
        """The text of the number of positions of `axes`."""
        known = extent_of(tuple(axis for axis in axes if not isinstance(axis.extent, Scalar)))
        parts = [self.number(axis.extent) for axis in axes if isinstance(axis.extent, Scalar)]
        text = " * ".join([*parts, *([str(known)] if known != 1 or not parts else [])])
        return f"({text})" if " " in text else text

    def blocks(self, axes: tuple[Axis, ...], each: int) -> str:
        """The text of the number of blocks of `each` positions."""
        count = extent_of(axes)
        if not isinstance(count, Scalar):
            return str(-(-count // each))
        return f"(({self.count(axes)} + {each - 1}) // {each})" if each > 1 else self.count(axes)

    # ------------------------------------------------------------------ positions
    def _positions(self) -> None:
        """`y`, `x` and one position of each grid axis, from the number of the program."""
        tile = self.tile
        is_far = is_far_tile(tile)
        self.emit(f"program = tl.program_id(0){'.to(tl.int64)' if is_far else ''}")
        rest = "program"
        has_rows = any(stage.axes for stage in self.kernel.stages)  # a program has whole ones, or walks them
        blocks = "1" if has_rows else self.blocks(tile.along, tile.columns)
        if blocks != "1" or tile.down and not has_rows:  # one text for images of all widths
            is_alone = holds("eq", extent_of((*tile.down, *tile.grid)), 1)
            self.along(f"{rest} * {tile.columns}" if is_alone else f"{rest} % {blocks} * {tile.columns}")
            rest = self._rest(rest, blocks, "program_y") if tile.down or tile.grid else "0"
        elif not tile.is_looped:
            self.along("")
        blocks = self.blocks(tile.down, tile.rows)
        start = self.block = f"({rest} % {blocks})" if tile.grid else rest
        if self.is_flat:
            self.emit(f"y = {start}")
        else:
            self.emit(f"y = {start} * {tile.rows} + tl.arange(0, {tile.rows})[:, None]")
            self.bound("y", extent_of(tile.down), tile.rows, self.count(tile.down))
            if "y" in self.masks and has_rows and ("x" in self.masks or tile.is_looped) and are_along(self.kernel, tile):
                self.is_clamped = True
                self.emit(f"y = tl.minimum(y, {self.count(tile.down)} - 1)")
        if tile.grid:
            rest = self._rest(rest, blocks, "program_g")
            for axis in reversed(tile.grid[1:]):
                rest = self.grid_axis(axis, rest)
            self.same["at", tile.grid[0].name] = _Known(rest, "", "")  # a division less: there are no more programs

    def grid_axis(self, axis: Axis, rest: str) -> str:
        """The position along an axis of the grid; what is left of the number `rest`."""
        extent = self.number(axis.extent)
        self.emit(f"at_{axis.name} = {rest} % {extent}")
        self.same["at", axis.name] = _Known(f"at_{axis.name}", "", "")
        return self._rest(rest, extent, f"over_{axis.name}")

    def _rest(self, rest: str, divisor: int | str, name: str) -> str:
        self.emit(f"{name} = {rest} // {divisor}")
        return name

    def along(self, start: str, is_masked: bool = True) -> None:
        """`x` and its mask, from the first position of a block."""
        columns, (least, most), x = self.tile.columns, self.between, self.names["x"]
        self.start = start
        at = f"tl.arange(0, {columns})" + ("" if self.is_flat else "[None, :]")
        self.emit(f"{x} = {start} + {at}" if start else f"{x} = {at}")
        if not is_masked or least == columns:
            return
        self.bound("x", extent_of(self.tile.along), columns, self.count(self.tile.along))
        if least > 1 and "x" in self.masks:  # LLVM sees then which positions need no mask, and which are none
            self.lines.pop()
            rest = f" & ({x} < {most})" if most and most < columns else ""
            self.emit(f"is_{x} = (({x} < {least}) | ({x} < {self.count(self.tile.along)})){rest}")

    def bound(self, dim: str, count: Dim, size: int, text: str = "") -> None:
        """The mask of the positions along `dim`, where blocks of `size` do not divide `count`. text: of the
        count, where it is not known."""
        if not holds("eq", count % size, 0):
            self.masks[dim] = f"is_{self.names[dim]}"
            self.emit(f"{self.masks[dim]} = {self.names[dim]} < {text or count}")

    def emit(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def _position(self, axes: tuple[Axis, ...], first: int, last: int) -> _Known:
        """The position along axes[first:last] of one dimension, flattened."""
        tile = self.tile
        dim = "y" if axes is tile.down else "x"
        divisor, modulus = self.count(axes[last:]), self.count(axes[first:last])
        key = ("position", dim, divisor, modulus if first else "")
        if key not in self.same and is_parted(tile) and (first or divisor != "1"):
            self.same.update((("position", "x", *which), _Known(name, "x", "")) for which, name in parts_of(self))
        if key not in self.same:
            whole = self.names[dim]
            text = whole if divisor == "1" else f"{whole} // {divisor}"
            if first and modulus != "1":
                text = f"{text} % {modulus}"
            name = whole if text == whole else f"{whole}_{first}_{last}"
            if name != whole:
                self.emit(f"{name} = {text}")
            self.same[key] = _Known(name, self._dims(dim), "")
        return self.same[key]

    def _dims(self, dims: Iterable[str]) -> str:
        """The dimensions along which a tensor of a value over `dims` has more than one element."""
        found = set(dims) - ({"y"} if self.is_flat else set())
        return "".join(d for d in "yx" if d in found)

    # ------------------------------------------------------------------ stages
    def give(self, op: LoopOp, name: str, dims: str = "yx") -> None:
        """The value of `op` is the tensor `name` over the tile."""
        self.values[op.id] = _Known(name, dims, op.dtype)

    def stage(self, stage: Stage) -> None:
        is_loop = bool(stage.axes) and self.tile.is_looped
        walks = [each for each in self.kernel.stages if each.axes]
        if is_loop and len(walks) > 1:
            self.eviction = "evict_first" if stage is walks[-1] else "evict_last"
        reductions = [op for op in stage.body if op.op == "reduce"]
        if is_loop:
            for op in reductions:
                self._begin(op)
            write_walk(self, stage)
            self.eviction = ""
            for op in reductions:
                self._finish(op)
            return
        for op in stage.body:
            self.operation(op)

    def operation(self, op: LoopOp, is_loop: bool = False) -> None:
        """Writes `op`; its value, if it has one, is in `values`."""
        if op.id in self.idle:
            self.values[op.id] = _Known("True", "", "bool")
        elif op.op == "where" and op.args[0] in self.known:
            self.values[op.id] = self.values[op.args[1]]
        elif op.how == SQUARES:
            moments.join(self, op)
        elif op.op == "reduce":
            self._accumulate(op) if is_loop else self._reduce(op)
        elif op.op == "store" and op.how:
            self.emit(f"a{op.param} = a{op.param} + {self.values[op.args[0]].name}")
        elif op.op == "store":
            self._store(op)
        elif op.op == "check":
            self._check(op)
        else:
            key = self.key_of(op)
            if key not in self.same:
                self.same[key] = self._compute(op)
            self.values[op.id] = self.same[key]

    def set_known(self, known: Collection[int]) -> None:
        """From here on these masks hold: neither they nor what only they are made of is written."""
        self.known = frozenset(known)
        self.idle = idle_ops(self.kernel, {*known, *self.within}) - (self.within.keys() - self.known)

    def key_of(self, op: LoopOp) -> tuple:
        """How a value is computed: the same key is the same value."""
        if op.id in self.within:
            return "within", str(self.within[op.id]._replace(mask=0))
        terms = () if op.index is None else tuple(
            (self.values[t].name if isinstance(t, int) else t, str(s)) for t, s in op.index.terms)
        base = str(op.index.base) if op.index is not None else ""
        args = tuple(self.values[a].name for a in op.args)
        mask = None if op.mask is None else self.values[op.mask].name
        is_coarse = op.op in ops.COARSE and op.id in self.coarse
        return (op.op, op.dtype, args, op.param, base, terms, mask, repr(op.other), op.axis, op.how,
                is_coarse)

    def _compute(self, op: LoopOp) -> _Known:
        name = f"v{op.id}"
        if op.id in self.within:
            place, dims = self.offset(self.within[op.id].index)
            self.emit(f"{name} = ({place or 0}) < {self.number(self.within[op.id].limit)}")
            return _Known(name, self._dims(dims), "bool")
        if op.op == "load":
            return self._load(op, name)
        if op.op == "const":
            self.emit(f"{name} = {self._constant(op.other, op.dtype)}")
            return _Known(name, "", op.dtype)
        if op.op == "axis":
            at = self._axis(op.axis)
            self.emit(f"{name} = {at.name}.to(tl.int64)")
            return _Known(name, at.dims, op.dtype)
        args = [self.values[a] for a in op.args]
        names = tuple(a.name for a in args)
        if op.op == "uniform":
            place, dims = self.offset(op.index)
            place = place or ops.constant(0, "int64")
            self.emit(f"{name} = drawn({names[0]}, {place}, {op.other})")
            return _Known(name, self._dims(dims), op.dtype)
        if op.op == "cast":
            text = ops.cast(names[0], args[0].dtype, op.dtype)
        elif op.op == "bitcast":
            text = ops.bitcast(names[0], op.dtype)
        elif op.op == "div" and op.id in self.coarse and op.args[1] in self.totals:
            text = f"share({names[0]}, {names[1]})"
        else:
            is_apart = self.is_fused and op.op == "mul" and op.dtype in ("float32", "float64")
            text = ops.apply("mul_rn" if is_apart else op.op, args[-1].dtype, names, op.id in self.coarse)
        self.emit(f"{name} = {text}")
        dtype = "bool" if op.op in COMPARISONS else op.dtype
        return _Known(name, self._dims("".join(a.dims for a in args)), dtype)

    def know(self, key: tuple, name: str, dims: str) -> None:
        """From here on `name` is the position of that key."""
        self.same[key] = _Known(name, dims, "")

    def axis(self, name: str) -> str:
        """The text of the position along one axis."""
        return self._axis(name).name

    def _axis(self, name: str) -> _Known:
        """The position along one axis."""
        if ("at", name) in self.same:
            return self.same["at", name]
        axes, place = self._find(name)
        return self._position(axes, place, place + 1)

    def _find(self, name: str) -> tuple[tuple[Axis, ...], int]:
        for axes in (self.tile.down, self.tile.along):
            for place, axis in enumerate(axes):
                if axis.name == name:
                    return axes, place
        raise InternalError(f"{self.kernel.name}: no axis {name}")

    # ------------------------------------------------------------------ memory
    def _load(self, op: LoopOp, name: str) -> _Known:
        param = self.kernel.params[op.param]
        if param.name == NUMBER:
            text = f"p{op.param}"
            self.emit(f"{name} = {text} != 0" if param.dtype == "bool" else f"{name} = {text}")
            return _Known(name, "", op.dtype)
        mask = self._own_mask(op)
        at, dims = self._pointer(op, mask.dims if mask else "")
        is_there = self.is_clamped and not any(isinstance(term, int) for term, _ in op.index.terms)
        masks = [*self._bounds(dims.replace("y", "") if is_there else dims), *([mask.name] if mask else [])]
        text = f"tl.load({at}"
        if masks:
            other = self._constant(op.other if op.other is not None else 0, param.dtype)
            text += f", mask={' & '.join(masks)}, other={other}"
        self.emit(f"{name} = {text}{self._hint(op.index, dims, self.eviction)})")
        return _Known(name, dims, op.dtype)

    def _constant(self, value: Number, dtype: str) -> str:
        """A scalar of `dtype`."""
        if not isinstance(value, Scalar):
            return ops.constant(value, dtype)
        wide = "float64" if value.type == "float" else "int64"
        return ops.cast(f"tl.full([], {self.number(value)}, {ops.triton_dtype(wide)})", wide, dtype)

    def _store(self, op: LoopOp) -> None:
        value, mask = self.values[op.args[0]], self._own_mask(op)
        at, dims = self._pointer(op, (mask.dims if mask else "") + value.dims)
        masks = [*self._bounds(dims), *([mask.name] if mask else []), *([self.gate] if self.gate else [])]
        tail = f", mask={' & '.join(masks)}" if masks else ""
        self.emit(f"tl.store({at}, {value.name}{tail}{self._hint(op.index, dims, 'evict_first')})")

    def _own_mask(self, op: LoopOp) -> _Known | None:
        """The mask that an access has in the kernel, unless it is known to hold."""
        return None if op.mask is None or op.mask in self.known else self.values[op.mask]

    def _hint(self, index: Index, dims: str, policy: str) -> str:
        """What is kept in L2 of a row that is walked again; what rows have in common stays anyway."""
        own = any(index.stride(axis.name) != 0 for axis in (*self.tile.grid, *self.tile.down))
        return f', eviction_policy="{policy}"' if self.eviction and own and "x" in dims else ""

    def _bounds(self, dims: Collection[str]) -> list[str]:
        return [self.masks[d] for d in dims if d in self.masks]

    def _pointer(self, op: LoopOp, also: str) -> tuple[str, str]:
        """The pointers of an access and the dimensions they have, `also` at least."""
        text, dims = self.offset(op.index)
        whole = self._dims(dims + also)
        if whole != self._dims(dims):
            text = f"{text} + tl.zeros({self.shape(whole)}, tl.int32)" if text else (
                f"tl.zeros({self.shape(whole)}, tl.int32)")
        if self.tile.parts and text:  # the row's own pointer first: with it in each position a third more registers
            return f"p{op.param} + {text}", whole
        return (f"p{op.param} + ({text})" if text else f"p{op.param}"), whole

    def shape(self, dims: str) -> str:
        if self.is_flat:
            return f"[{self.tile.columns}]"
        sizes = [self.tile.rows if "y" in dims else 1, self.tile.columns if "x" in dims else 1]
        if self.spread is not None:
            sizes.insert(self.spread, 1)
        return str(sizes)

    def offset(self, index: Index) -> tuple[str, str]:
        """The text of an element offset, "" for 0, and the dimensions it depends on."""
        strides = {term: stride for term, stride in index.terms if isinstance(term, str)}
        is_far = not self.tile.parts and abs(index.base) + sum(
            abs(s) * (self.stride.get(t, 1) - 1) for t, s in strides.items()) >= FAR
        parts: list[str] = []
        dims = ""
        for at, step in self._joint(strides):
            parts.append(self._stepped(f"{at.name}.to(tl.int64)" if is_far else at.name, step))
            dims += at.dims
        for term, step in index.terms:
            if isinstance(term, int):
                value = self.values[term]
                parts.append(self._stepped(value.name, step))
                dims += value.dims
        base = self.number(index.base)
        return " + ".join(parts if base == "0" else [*parts, base]), dims

    def _stepped(self, name: str, step: Dim) -> str:
        text = self.number(step)
        return name if text == "1" else f"{name} * {text}"

    def _joint(self, strides: dict[str, Dim]) -> list[tuple[_Known, Dim]]:
        """Positions and strides whose products give an offset: neighbouring axes that memory walks
        as one are one position."""
        found: list[tuple[_Known, Dim]] = []
        for axis in self.tile.grid:
            if strides.get(axis.name):
                found.append((self._axis(axis.name), strides[axis.name]))
        for axes in (self.tile.down, self.tile.along):
            first = 0
            while first < len(axes):
                step, last = strides.get(axes[first].name, 0), first + 1
                while step and last < len(axes):
                    inner = strides.get(axes[last].name, 0)
                    if not holds("eq", step, inner * axes[last].extent):
                        break
                    step, last = inner, last + 1
                if step:
                    found.append((self._position(axes, first, last), step))
                first = last
        return found

    def _check(self, op: LoopOp) -> None:
        if op.how != "index":
            return
        self.has_check = True
        condition = self.values[op.args[0]]
        bounds = self._bounds(condition.dims)
        mask = f", mask={' & '.join(bounds)}" if bounds else ""
        self.emit(f'tl.device_assert({condition.name}, "index out of bounds"{mask})')

    # ------------------------------------------------------------------ reductions
    def _reduce(self, op: LoopOp) -> None:
        """A reduction of whole rows."""
        value = self.values[op.args[0]]
        key = (*self.key_of(op), "reduce")
        if key not in self.same:
            wide = self.widened(op, value)
            if "x" in self.masks:
                wide = f"tl.where({self.masks['x']}, {wide}, {ops.least(op.how, value.dtype)})"
            if op.how in ("argmax", "argmin"):
                values, places = (f"{v} + {self._nothing()}" for v in (wide, "x"))
                self._reduce_pairs(op, values, places)
            else:
                self.reduced(op, self.whole(wide, value))
            self.same[key] = _Known(f"v{op.id}", self._dims("y"), op.dtype)
        self.values[op.id] = self.same[key]

    def _begin(self, op: LoopOp) -> None:
        """The accumulators of a reduction that is walked block by block."""
        if op.id in self.online or op.how in IN_ONE_WALK:
            (moments.begin if op.how in MOMENTS else begin)(self, op)
            return
        value_dtype = self._operand_dtype(op)
        shape = self.shape("yx")
        least = ops.least(op.how, value_dtype)
        self.emit(f"a{op.id} = tl.zeros({shape}, {ops.triton_dtype(ops.wide(op.how, value_dtype))}) + {least}")
        if op.how in ("argmax", "argmin"):
            self.emit(f"n{op.id} = tl.zeros({shape}, tl.int32)")

    def _accumulate(self, op: LoopOp) -> None:
        value, mask, a = self.values[op.args[0]], self.masks.get("x"), f"a{op.id}"
        wide = self.widened(op, value)
        if op.id in self.online or op.how in IN_ONE_WALK:
            (moments.accumulate if op.how in MOMENTS else accumulate)(self, op, wide, mask)
            return
        if op.how in ("argmax", "argmin"):
            sign = ">" if op.how == "argmax" else "<"
            self.emit(f"w{op.id} = {wide} + {self._nothing()}")
            wide = f"w{op.id}"
            better = f"(({wide} {sign} {a}) | (({wide} != {wide}) & ({a} == {a})) | (start == 0))"
            better = f"({better} & {mask})" if mask else better
            self.emit(f"n{op.id} = tl.where({better}, x + tl.zeros_like(n{op.id}), n{op.id})")
            self.emit(f"{a} = tl.where({better}, {wide}, {a})")
            return
        joined = ops.JOINED[op.how].format(a, wide)
        self.emit(f"{a} = tl.where({mask}, {joined}, {a})" if mask else f"{a} = {joined}")

    def _finish(self, op: LoopOp) -> None:
        if op.id in self.online or op.how in IN_ONE_WALK:
            (moments.finish if op.how in MOMENTS else finish)(self, op)
        elif op.how in ("argmax", "argmin"):
            self._reduce_pairs(op, f"a{op.id}", f"n{op.id}")
        else:
            self.reduced(op, f"a{op.id}")
        self.values[op.id] = _Known(f"v{op.id}", self._dims("y"), op.dtype)

    def reduced(self, op: LoopOp, whole: str) -> None:
        text = self.joined(whole, ops.COMBINED[op.how])
        dtype = "bool" if op.how in ("any", "all") else op.dtype
        text = f"({text} != 0)" if dtype == "bool" else f"{text}.to({ops.triton_dtype(dtype)})"
        self.emit(f"v{op.id} = {text}")

    def joined(self, whole: str, how: str) -> str:
        """One value a row of a tensor over the tile: "tl.sum", or a helper that joins two."""
        axis, keep = ("0", "") if self.is_flat else ("1", ", keep_dims=True")
        if how == "tl.sum":
            return f"tl.sum({whole}, {axis}{keep})"
        return f"tl.reduce({whole}, {axis}, {how}{keep})"

    def _reduce_pairs(self, op: LoopOp, values: str, places: str) -> None:
        axis = "0" if self.is_flat else "1"
        how = "first_largest" if op.how == "argmax" else "first_smallest"
        keep = "" if self.is_flat else ", keep_dims=True"
        self.emit(f"w{op.id}, n{op.id} = tl.reduce(({values}, {places}), {axis}, {how}{keep})")
        self.emit(f"v{op.id} = n{op.id}.to(tl.int64)")

    def whole(self, text: str, value: _Known) -> str:
        """A value at every position of the tile."""
        has_all = value.dims == self._dims("yx")
        return text if has_all or ("x" in self.masks and value.dims == self._dims("yx")) else (
            f"tl.broadcast_to({text}, {self.shape('yx')})")

    def _nothing(self) -> str:
        """Zeros of the tile's shape: what is added to has a value at every position."""
        return f"tl.zeros({self.shape('yx')}, tl.int32)"

    def _operand_dtype(self, op: LoopOp) -> str:
        """The dtype of what a reduction will read, before its stage is written."""
        bodies = (o for stage in self.kernel.stages for o in stage.body)
        made = next(o for o in bodies if o.id == op.args[0])
        return "bool" if made.op in COMPARISONS else made.dtype

    def widened(self, op: LoopOp, value: _Known) -> str:
        return ops.cast(value.name, value.dtype, ops.wide(op.how, value.dtype))
