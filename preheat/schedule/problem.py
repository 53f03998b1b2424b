"""The problem that fusion solves: which values need memory, which calls need which operands.

    %5 = mul(..); %6 = permute(%5); %7 = matmul(%6, %2); return %6
      required: %5 (operand of %7 through the view %6), %8 = copy of %6 (a fresh output)
      call %7 on View(5, strides (1, 128)) and %2

Every effect becomes a value with memory: an output that must be fresh gets a copy of its own where
the value cannot live in the output itself, and a written input gets a value that lives in the
input's memory. Guarantees: operands of library calls have exactly the strides of their types.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from preheat.base.dataclass import dataclass
from preheat.base.errors import Unsupported
from preheat.ir.graph import Graph, Op, OutputAlias, Ref, device_of
from preheat.ir.graph import Store as InPlace
from preheat.ir.hinted import estimate
from preheat.ir.ops import CORE, FUSABLE
from preheat.ir.scalar import Dim
from preheat.ir.types import NoneType, TensorType, contiguous_strides, tensor
from preheat.schedule.cost import LAUNCH_BYTES
from preheat.schedule.interleave import Piece, given_values, is_interleaved, pieces
from preheat.schedule.library import COPIES, OVERLOADS, is_blas, product_overload
from preheat.schedule.loops import DIVISIONS, MOVED_AS, RULES
from preheat.schedule.views import Store, View, store_through, view_of

MOST_PARTS = 16
PACKED_BYTES = 16  # from one single number to the next: what launches expect of pointers
KERNEL_KINDS = "fiub"  # dtypes that kernels compute in


@dataclass(frozen=True, slots=True)
class CallUnit:
    """A product (`overload` "") or library call.

    operands   the view of memory that each value it reads is
    makes      the values whose memory it fills
    out        where a product stores: a view of the memory of the one value that it makes. On a GPU it does so
               by pieces (`interleave`)
    beta       1 when the product adds to what is there
    """

    op: Op
    overload: str
    operands: tuple[tuple[int, View], ...]
    makes: tuple[int, ...]
    out: View | None = None
    beta: int = 0

    @property
    def reads(self) -> frozenset[int]:
        """The values whose memory it reads."""
        return frozenset(view.base for _, view in self.operands)

    @property
    def products(self) -> tuple[Piece, ...]:
        """The products that are to be stored, in order; none of a library call."""
        if self.out is None:
            return ()
        view = dict(self.operands)
        product = (*(view[arg.id] for arg in self.op.args), self.out)
        return tuple(pieces(*product)) if self.op.type.device != "cpu" else (product,)


@dataclass(frozen=True, slots=True)
class Problem:
    """ops         by value, copies included; fused and called ones
    order       position of a value in the program (copies between may have a fraction)
    types       of every value, with the strides of the memory it lives in
    required    values that must have memory: operands of calls, outputs, writes
    written     value -> the input whose memory it lives in
    memory      value -> the value whose memory it lives in, where that is not its own
    replaces    value -> the value that the memory holds before, whose readers come first
    parts       value -> what is stored to make it, where that is not all of it
    calls       in program order
    results     values that calls make
    outputs     one a graph output: the value whose memory it is, or -1 for an alias
    pieces      value -> others that fill its memory, in any order: a kernel that reads it waits for all
    within      a piece -> the value whose memory it lies in, and how many elements from its start
    factors     required values that sums read again and again: loaded there, never computed
    """

    inputs: frozenset[int]
    ops: Mapping[int, Op]
    order: Mapping[int, float]
    types: Mapping[int, TensorType]
    required: frozenset[int]
    written: Mapping[int, int]
    memory: Mapping[int, int]
    replaces: Mapping[int, int]
    parts: Mapping[int, Store]
    calls: tuple[CallUnit, ...]
    results: frozenset[int]
    outputs: tuple[int, ...]
    next_value: int
    factors: frozenset[int]
    pieces: Mapping[int, tuple[int, ...]]
    within: Mapping[int, tuple[int, int]]

    def is_given(self, value: int) -> bool:
        """`value` has memory that no kernel makes: an input or the result of a call."""
        return value in self.inputs or value in self.results

    def store(self, value: int) -> Store:
        """The store that gives `value` its memory."""
        whole = Store(value, value, self.memory.get(value, value), 0, self.types[value].strides)
        return self.parts.get(value, whole)

    def operands(self, value: int) -> tuple[int, ...]:
        """The values that a kernel reads to make `value`."""
        if value in self.parts:
            return (self.parts[value].value,)
        return tuple(dict.fromkeys(self.ops[value].refs()))

    def buffered(self, root: int) -> "Problem":
        """The problem in which the value written at the end as `root` is made elsewhere and copied.

        Breaks the knot where a write needs the old value of an input that is written before it.
        """
        value, source = self.next_value, self.ops[root].args[0].id
        given = self.types[source]
        type = tensor(given.dtype, given.sizes, device=given.device)
        ops, types, order = dict(self.ops), dict(self.types), dict(self.order)
        ops[value], types[value] = _copy_op(source, value, type), type
        order[value] = order[root] - 0.5
        ops[root] = replace(ops[root], args=(Ref(value),))
        return replace(
            self,
            ops=ops,
            types=types,
            order=order,
            required=self.required | {value},
            next_value=value + 1,
        )


def state(
    graph: Graph, late: frozenset[int] = frozenset(), factors: Collection[int] = ()
) -> Problem:
    """The problem of `graph`; inputs in `late` are written at the end, whatever `in_place` says.
    The values `factors` get memory, or the values that they are views of.

    Raises Unsupported for what no kernel and no overload computes.
    """
    return _Statement(graph, late, factors).state()


def _narrows(op: Op, value: int) -> bool:
    """Not every element of `value` is used by `op`."""
    return op.name in ("slice", "place", "take", "gather", "index") and op.args[0].id == value


def _is_large(type: TensorType) -> bool:
    """Worth a kernel for each of a few parts."""
    return estimate(type.elems) * type.itemsize >= 2 * LAUNCH_BYTES


def _copy_op(source: int, value: int, type: TensorType) -> Op:
    return Op("reshape", (Ref(source),), (value,), (type,))


class _Statement:
    def __init__(self, graph: Graph, late: frozenset[int], factors: Collection[int]):
        self.graph, self.late, self.factors = graph, late, factors
        self.types = graph.types()
        self.ops: dict[int, Op] = {}
        self.calls: list[Op] = []
        self.results: set[int] = set()
        self.required: set[int] = set()
        self.written: dict[int, int] = {}
        self.joined: dict[int, int] = {}
        self.replaces: dict[int, int] = {}
        self.parts: dict[int, Store] = {}
        self.pieces: dict[int, tuple[int, ...]] = {}
        self.within: dict[int, tuple[int, int]] = {}
        self.inputs = frozenset(i.id for i in graph.inputs)
        self.order = {v: n for n, op in enumerate(graph.ops) for v in op.results}
        self.next = graph.next_id()
        self.given = given_values(graph) if device_of(graph) != "cpu" else set()
        self.read = frozenset((
            *graph.outputs, *(value for _, value in graph.writes),
            *(ref for op in graph.ops for ref in op.refs())))

    def state(self) -> Problem:
        for given in self.graph.inputs:
            if not isinstance(given.type, TensorType):
                raise Unsupported("data_dependent_number", f"input {given.name} is a number")
        self._check_devices()
        live = {*self.inputs}
        for op in self._live():
            live.update(op.results)
            if self._is_call(op):
                self.calls.append(op)
                self.results.update(op.results)
            for value in op.results:
                self.ops[value] = op
        outputs = self._outputs()
        self._writes()
        made = [self._call(op) for op in self.calls]
        factors = {self._operand(v, False).base for v in sorted(self.factors) if v in live}
        self._raisers()
        self._joins()
        self._packs()
        calls = self._moved_products(made)
        return Problem(
            self.inputs,
            self.ops,
            self.order,
            self.types,
            frozenset(self.required),
            self.written,
            self.written | self.joined,
            self.replaces,
            self.parts,
            calls,
            frozenset(self.results),
            outputs,
            self.next,
            frozenset(factors),
            self.pieces,
            self.within,
        )

    def _check_devices(self) -> None:
        """One device; beside a GPU, what is in the host's memory is given (an input, or made by a
        library call), or a 0-d value that kernels compute for themselves."""
        host, gpu = "cpu", device_of(self.graph)
        called = {r for op in self.graph.ops if op.name == "library" for r in op.results}
        for value, type in self.types.items():
            if not isinstance(type, TensorType) or type.device == gpu:
                continue
            is_given = value in self.inputs or value in called or type.rank == 0
            if type.device != host or not is_given:
                raise Unsupported("no_kernel", f"%{value} is on {type.device}, others on {gpu}")
        if gpu.partition(":")[0] not in (host, "cuda"):
            raise Unsupported("no_kernel", f"tensors on {gpu}")

    def _live(self) -> list[Op]:
        """The ops to run, in program order: what an output or a write depends on, and what is there
        for its effect (random numbers, an error that eager would raise)."""
        needed = {*self.graph.outputs, *(v for _, v in self.graph.writes)}
        live: list[Op] = []
        for op in reversed(self.graph.ops):
            is_read = any(r in needed for r in op.results)
            if not is_read and self._may_raise(op):
                self.required.add(op.result)
                is_read = True
            if is_read or op.name == "library":
                needed.update(op.refs())
                live.append(op)
        return live[::-1]

    def _may_raise(self, op: Op) -> bool:
        if op.name in DIVISIONS:
            return op.type.kind in "iu"
        return CORE.get(op.name, CORE["library"]).kind == "gather"

    def _is_call(self, op: Op) -> bool:
        if op.name in ("library", "matmul"):
            return True
        if op.name not in RULES:
            raise Unsupported("no_kernel", f"core op {op.name}")
        if self._is_computable(op):
            return False
        if op.name not in OVERLOADS:
            raise Unsupported("no_kernel", f"{op.name} of {op.type}")
        return True

    def _is_computable(self, op: Op) -> bool:
        """A kernel computes `op` at its dtypes, as exactly as eager."""
        operands = [self.types[r] for r in op.refs()]
        if CORE[op.name].kind == "elementwise":
            return op.name in FUSABLE and all(
                t.dtype in FUSABLE[op.name] for t in operands[op.name == "where" :]
            )
        if CORE[op.name].kind in ("movement", "gather"):
            return all(
                t.kind in KERNEL_KINDS or t.dtype in MOVED_AS for t in (op.type, *operands)
            ) or self._is_view(op)
        return all(t.kind in KERNEL_KINDS for t in (op.type, *operands))

    def _is_view(self, op: Op) -> bool:
        """No kernel moves such elements, but a library call may take them by strides."""
        return op.name in ("reshape", "permute", "expand", "slice")

    def _raisers(self) -> None:
        """What may raise is computed whole, as eager does, even where only a part of it is used."""
        if not any(map(self._may_raise, self.ops.values())):
            return
        users: dict[int, list[Op]] = {}
        for op in self.ops.values():
            for ref in op.refs():
                users.setdefault(ref, []).append(op)
        whole = set(self.required)
        for value in sorted(self.ops, key=self.order.__getitem__, reverse=True):
            op, readers = self.ops[value], users.get(value, ())
            if value in self.results:
                continue
            if any(
                r.result in whole and not _narrows(r, value) for r in readers if len(r.results) == 1
            ):
                whole.add(value)
            elif value not in whole and self._may_raise(op):
                self.required.add(value)
                whole.add(value)

    # ------------------------------------------------------------------ effects
    def _copy(self, value: int, type: TensorType) -> int:
        """A new value with the elements of `value` and memory of its own."""
        copy, self.next = self.next, self.next + 1
        self.ops[copy] = _copy_op(value, copy, type)
        self.types[copy] = type
        self.order[copy] = len(self.graph.ops) + copy
        self.required.add(copy)
        return copy

    def _outputs(self) -> tuple[int, ...]:
        aliases = self.graph.output_aliases or (OutputAlias(),) * len(self.graph.outputs)
        taken: set[int] = set()
        outputs: list[int] = []
        for value, alias in zip(self.graph.outputs, aliases):
            type = self.types[value]
            if alias.kind != "fresh":
                outputs.append(-1)
                continue
            if not isinstance(type, TensorType):
                raise Unsupported("data_dependent_number", f"an output that is {type}")
            if value in taken or value in self.inputs:
                value = self._copy(value, type)
            taken.add(value)
            self.required.add(value)
            outputs.append(value)
        return tuple(outputs)

    def _writes(self) -> None:
        in_place = frozenset(self.graph.in_place)
        stores_of: dict[int, list[InPlace]] = {}
        for store in self.graph.stores:
            stores_of.setdefault(store.target, []).append(store)
        for target, value in self.graph.writes:
            type = self.types[target]
            if value == target or type.elems == 0:
                continue
            if any(stride == 0 and size != 1 for size, stride in zip(type.sizes, type.strides)):
                raise Unsupported("written_overlap", f"a write to {type}")
            stores = stores_of.get(target, [])
            if target in in_place and target not in self.late and self._are_free(stores):
                self._in_place(stores)
            else:
                copy = self._copy(value, type)
                self.written[copy], self.replaces[copy] = target, target

    def _are_free(self, stores: list[InPlace]) -> bool:
        """The states of a written input can live in its memory alone."""
        taken = (self.required, self.results, self.inputs, self.written)
        return bool(stores) and not any(s.state in places for s in stores for places in taken)

    def _in_place(self, stores: list[InPlace]) -> None:
        """Each store is a value of its own; the last of a state is the state, for its readers."""
        before = stores[0].target
        for store, after in zip(stores, [*stores[1:], None]):
            type = self.types[store.target]
            root = store.state
            if after is not None and after.state == store.state:
                root = self._copy(store.value, self.types[store.value])
                self.order[root] = self.order[store.state] - 0.5
            self.types[root] = type
            self.required.add(root)
            self.written[root], self.replaces[root] = store.target, before
            if store.value != root:
                self.parts[root] = Store(
                    root, store.value, store.target, store.offset, store.strides
                )
            before = root

    def _joins(self) -> None:
        """A large `cat` that needs memory is stored part by part: no masks, and its operands are
        computed in place. The last part is the value itself, for its readers. What a call gives is
        stored right behind the call."""
        for value in sorted(self.required):
            cat, type = self._cat_in(value), self.types[value]
            if cat is None or value in self.written or value in self.parts or not _is_large(type):
                continue
            strides = type.strides if cat == value else contiguous_strides(self.types[cat].sizes)
            refs = list(self._joined(cat, 0, strides))
            if len(refs) > MOST_PARTS:
                continue
            before = None
            for number, (ref, offset) in enumerate(refs):
                part = value if number == len(refs) - 1 else self._copy(ref, self.types[ref])
                if part != value:
                    start = self.order[ref] if ref in self.results else self.order[value] - 1
                    self.order[part], self.joined[part] = start + 0.5, value
                self.parts[part] = Store(part, ref, value, offset, strides)
                if before is not None:
                    self.replaces[part] = before
                before = part

    def _packs(self) -> None:
        """A `cat` of many single numbers, such as norms that are added up, has memory that each of them is stored
        in, by calls of one kernel: one of all would have a parameter for each, and ask of each element whose it is.
        They lie as far apart as launches need."""
        device = device_of(self.graph)
        for value, op in [*self.ops.items()]:
            if op.name != "cat" or len(op.args) <= MOST_PARTS or value in self.required:
                continue
            parts = [self._reshaped(arg.id) for arg in op.args]
            types = [self.types[part] for part in parts]
            if any(t.elems != 1 or t.kind not in KERNEL_KINDS or t.device != device for t in types):
                continue
            step = PACKED_BYTES // types[0].itemsize
            self.types[value] = replace(self.types[value], strides=(step,) * self.types[value].rank)
            for number, source in enumerate(parts):
                piece = self._copy(source, self.types[source])
                self.ops[piece] = replace(  # elementwise: a kernel of any number of elements does it
                    self.ops[piece], name="cast", attrs=(("dtype", self.types[source].dtype),))
                start = self.order[source] if source in self.results else self.order[value] - 1
                self.order[piece], self.within[piece] = start + 0.5, (value, number * step)
                self.pieces[value] = (*self.pieces.get(value, ()), piece)
            self.results.add(value)

    def _reshaped(self, value: int) -> int:
        """What `value` is another shape of."""
        while value in self.ops and self.ops[value].name == "reshape":
            value = self.ops[value].args[0].id
        return value

    def _cat_in(self, value: int) -> int | None:
        """The `cat` whose elements memory of `value` holds, as it is or in another shape."""
        found, type = value, self.types[value]
        while found in self.ops and self.ops[found].name == "reshape":
            found = self.ops[found].args[0].id
            if found in self.required:
                return None
        if found not in self.ops or self.ops[found].name != "cat":
            return None
        return found if found == value or type.strides == contiguous_strides(type.sizes) else None

    def _joined(
        self, value: int, offset: Dim, strides: tuple[Dim, ...],
    ) -> Iterator[tuple[int, Dim]]:
        """What the `cat` `value` joins, and what those join that have no memory, each with where it begins in memory
        of `strides`."""
        axis = self.ops[value].attr("axis")
        for ref in self.ops[value].refs():
            if self.types[ref].elems == 0:
                continue
            op = self.ops.get(ref)
            if op is not None and op.name == "cat" and ref not in self.required:
                yield from self._joined(ref, offset, strides)
            else:
                yield ref, offset
            offset = offset + self.types[ref].sizes[axis] * strides[axis]

    # ------------------------------------------------------------------ calls
    def _call(self, op: Op) -> CallUnit:
        for result, type in zip(op.results, op.types):
            if not isinstance(type, (TensorType, NoneType)) and result in self.read:
                raise Unsupported("data_dependent_number", f"{op.attr('op')} yields a number")
        is_exact = op.name != "matmul" or self._is_interleaved(op)
        views = {value: self._operand(value, is_exact) for value in dict.fromkeys(op.refs())}
        overload = self._overload(op, views)
        makes = tuple(
            r for r, t in zip(op.results, op.types) if isinstance(t, TensorType) and r in self.read
        )
        out = None if overload else View(op.result, 0, op.type.sizes, op.type.strides)
        return CallUnit(op, overload, tuple(views.items()), makes, out)

    def _overload(self, op: Op, views: Mapping[int, View]) -> str:
        if op.name == "library":
            name = op.attr("op")
            return name if name not in COPIES or self._may_look(op, views) else self._copying(name)
        if op.name != "matmul":
            return OVERLOADS[op.name]
        a, b = (self._view_type(views[r.id]) for r in op.args)
        return "" if is_blas(a, b, op.type) or self._is_interleaved(op) else product_overload(op)

    def _is_interleaved(self, op: Op) -> bool:
        return is_interleaved(op, self.types, self.given)

    def _may_look(self, op: Op, views: Mapping[int, View]) -> bool:
        """The result of the library's view `op` may share its operand's memory: that holds what it
        holds for the whole call, and nobody outside sees two results in it."""
        if op.attr("op") == "aten.as_strided.default":
            return False  # its offset counts from the start of the storage, wherever that is
        base = views[op.args[0].id].base
        maker = self.ops.get(base)
        if maker is None:  # an input
            is_kept = all(target != base for target, _ in self.graph.writes)
            return is_kept and op.result not in self.graph.outputs
        if base not in self.results or maker.name == "matmul" or base in self.graph.outputs:
            return False  # memory of the plan, or the caller's
        if op.result not in self.graph.outputs:
            return True
        is_view = maker.name == "library" and maker.attr("op") in COPIES
        readers = [o for o in self.graph.ops if base in o.refs()]
        return not is_view and op.args[0].id == base and len(readers) == 1

    def _copying(self, name: str) -> str:
        copying = COPIES[name]
        if copying is None:
            raise Unsupported("unknown_view", f"{name} of memory that changes")
        return copying

    def _view_type(self, view: View) -> TensorType:
        return replace(self.types[view.base], sizes=view.sizes, strides=view.strides)

    def _operand(self, value: int, is_exact: bool) -> View:
        """The view of memory that `value` is; gives memory to what has none."""
        base = value
        while base in self.ops and base not in self.results and self._is_view(self.ops[base]):
            if base in self.required:
                break
            base = self.ops[base].args[0].id
        view = None
        if base != value and self.types[base].kind == self.types[value].kind:
            view = view_of(value, self.ops, self.types, lambda v: v == base)
        if view is not None and is_exact:
            fits = self._fits(view, self.types[value])
            view = replace(view, strides=self.types[value].strides) if fits else None
        if view is None:
            view = View(value, 0, self.types[value].sizes, self.types[value].strides)
        if view.base not in self.inputs and view.base not in self.results:
            self.required.add(view.base)
        return view

    def _fits(self, view: View, type: TensorType) -> bool:
        """Library calls may look at strides, and give results that have them: they get eager's. On
        an axis of one element any will do."""
        return all(
            a == b for size, a, b in zip(type.sizes, view.strides, type.strides) if size != 1
        )

    def _moved_products(self, calls: list[CallUnit]) -> tuple[CallUnit, ...]:
        """Products whose result is only moved into other memory store there at once, by strides."""
        users: dict[int, list[int]] = {}
        for value, op in self.ops.items():
            if op.results[0] == value:  # a call with hundreds of results is one user
                for arg in op.refs():
                    users.setdefault(arg, []).append(value)
        return tuple(self._moved(call, users) for call in calls)

    def _moved(self, call: CallUnit, users: Mapping[int, list[int]]) -> CallUnit:
        if call.overload or call.op.result in self.required:
            return call
        made = moved = call.op.result
        while moved not in self.required and len(users.get(moved, ())) == 1:
            (moved,) = users[moved]
            if self.ops[moved].name not in ("reshape", "permute"):
                return call
        if (
            moved == made
            or moved not in self.required
            or moved in self.written
            or moved in self.parts
        ):
            return call
        store = Store(moved, moved, moved, 0, self.types[moved].strides)
        store = store_through(store, self.ops, self.types, lambda value: value == made)
        out = View(moved, store.offset, call.op.type.sizes, store.strides)
        views = dict(call.operands)
        a, b = (self._view_type(views[r.id]) for r in call.op.args)
        fits = is_blas(a, b, self._view_type(out)) or out.strides == contiguous_strides(out.sizes)
        if store.value != made or not fits:
            return call
        self.results.remove(made)
        self.results.add(moved)
        return replace(call, makes=(moved,), out=out)
