"""Functionalize: a recorded graph without writes and without shared memory.

    %2: f32[8] = aten.select.int(%0, 0, 3) aliases %0
    %2: f32[8] = aten.add_.Tensor(%2, %1) writes %2
    return %2
      ->
    %2: f32[8] = aten.select.int(%0, 0, 3)
    %3: f32[8] = aten.add.Tensor(%2, %1)
    %4: f32[4, 8] = aten.select_scatter.default(%0, %3, 0, 3)
    %5: f32[8] = aten.select.int(%4, 0, 3)
    write %0 <- %4
    return %5 at input 0 + 24

Storage by storage: the first value in a storage is its root, every other one a chain of views from
it. A write to a view is carried to the root through the inverse of each view; a view whose root has
changed is taken anew where it is next read, so reads precede later writes. Requires a graph at
level aten as recorded. Guarantees level aten, no writes or aliases in ops, `Graph.writes` with what
each written input holds at the end, `output_aliases` exact (views of memory made here lie in an
output of their own, appended at the end when the program does not return it). What cannot be exact
is Unsupported and runs eager: written inputs that overlap others or themselves, views without an
inverse.

Of a graph that says which values require grad (`Graph.grads`), the result says so too, and every op
has the grad mode in which its gradient counts. What a write outside of autograd (under no_grad, or
through a detached view) leaves behind has new elements and the old history:

    %1 = preheat.carry(%new, %old)      the elements of %new, the gradient goes to %old

Source: functionalization in torch (aten/src/ATen/FunctionalTensorWrapper.h), reduced to one pass.
"""

from collections import Counter
from dataclasses import replace

from preheat.base.dataclass import dataclass, field
from preheat.base.errors import Unsupported
from preheat.bridge.ops import (
    HIDDEN_WRITES, SILENT_WRITES, arguments, functional, infer, schema, writes_unseen,
)
from preheat.ir.graph import CARRY, Builder, Graph, Op, OutputAlias, Ref, Token, map_refs
from preheat.ir.dims import decide, normal
from preheat.ir.hinted import estimate
from preheat.ir.scalar import Dim
from preheat.ir.types import TensorType, Type, by_stride, is_unhinted, tensor
from preheat.transform.views import INVERSES, LAZY, SPLITS, VIEWS, offset_of

FUNCTIONAL_NAMES = {"aten.normal_.default": "aten.normal_functional.default"}
# What these give has nothing of what was there.
_OVERWRITES = frozenset((
    "aten.zero.default", "aten.fill.Scalar", "aten.fill.Tensor", "aten.copy.default"))
# In-place draws of a CPU that go through dense memory as it lies; their functional forms go through elements.
_DRAWN_IN_MEMORY_ORDER = frozenset(
    ("aten.bernoulli_.float", "aten.uniform_.default", "aten.exponential_.default"))
_AS_REALS = "aten.view_as_real.default"
_PARTS = {"complex64": "float32", "complex128": "float64"}
_UNSAFE = "aten._unsafe_view.default"  # no view to autograd: what it is given is not used again
# Views that begin a history of their own.
_CUT_OFF = frozenset(("aten.detach.default",))


def functionalize(graph: Graph) -> Graph:
    """`graph` without writes and aliases. Raises Unsupported where that would not be exact."""
    state = _State(graph)
    for op in graph.ops:
        state.append(op)
    state.require_unread()
    return state.finish(graph)


@dataclass(frozen=True, slots=True)
class _View:
    """A value that is a view: of `parent` by `op` (one result), `offset` elements into `root`."""

    root: int
    parent: int
    op: Op
    offset: Dim | None  # None: unknown, such a view cannot be an output


@dataclass
class _Root:
    """The memory that the value `id` began: what it holds now, and how often it has changed."""

    current: int
    version: int = 0


@dataclass
class _State:
    """The functional graph so far, and where each recorded value lives."""

    graph: Graph
    builder: Builder = field(init=False)
    types: dict[int, Type] = field(init=False)
    sharing: frozenset[int] = frozenset()  # inputs that may share memory with others
    views: dict[int, _View] = field(default_factory=dict)
    roots: dict[int, _Root] = field(default_factory=dict)
    # of a view: the version of its root when it was last taken, and the value it was then
    taken: dict[int, tuple[int, int]] = field(default_factory=dict)
    grads: set[int] = field(default_factory=set)  # functional values that require grad
    stored: list[tuple[int, int]] = field(default_factory=list)  # see `Graph`
    is_grad_enabled: bool = False  # where the op under way was recorded
    region: int = 0  # the same

    def __post_init__(self) -> None:
        self.builder = Builder("aten", next_id=self.graph.next_id())
        self.types = self.graph.types()
        groups = Counter(i.alias_set for i in self.graph.inputs if i.alias_set >= 0)
        self.sharing = frozenset(i.id for i in self.graph.inputs if groups[i.alias_set] > 1)
        self.grads |= {*self.graph.grads, *_unwritten_outputs(self.graph)}
        for input in self.graph.inputs:
            self.builder.inputs.append(input)
            self.builder.type_of[input.id] = input.type
            self.roots[input.id] = _Root(input.id)

    # ------------------------------------------------------------------ reading and writing
    def read(self, value: int) -> int:
        """The value that holds what the recorded `value` holds at this point."""
        view = self.views.get(value)
        if view is None:
            return self.roots[value].current
        version = self.roots[view.root].version
        known = self.taken.get(value)
        if known is not None and known[0] == version:
            return known[1]
        parent = self.read(view.parent)
        was, self.is_grad_enabled = self.is_grad_enabled, view.op.is_grad_enabled
        fresh = self.emit(
            view.op.name, (Ref(parent), *view.op.args[1:]), self.types[value], view.op.attrs
        )
        self.is_grad_enabled = was
        self.taken[value] = (version, fresh)
        return fresh

    def write(self, value: int, new: int, is_new: bool = False) -> None:
        """From here on, `value`'s memory holds `new`, in which there is nothing of what was there if it
        `is_new`."""
        was, written, is_over = self.is_grad_enabled, new, is_new and value in self.views
        while value in self.views:
            self._require_writable(value)
            view = self.views[value]
            if not view.op.is_grad_enabled or view.op.name in _CUT_OFF:
                if new in self.grads:
                    raise Unsupported(
                        "unknown_history", "a differentiable write to a detached view")
                self.is_grad_enabled = False
            base = self.read(view.parent)
            known = len(self.builder.ops)
            new = INVERSES[view.op.name](self, view.op, base, self.types[view.parent], new)
            is_over &= not any(base in op.refs() for op in self.builder.ops[known:])
            value = view.parent
        root = value
        self._require_writable(root)
        new, old = self._in_layout(new, self.types[root]), self.roots[root].current
        if not self.is_grad_enabled and old in self.grads:
            self.is_grad_enabled = True
            new = self.emit(CARRY, (Ref(new), Ref(old)), self.builder.type_of[old])
        elif is_over and old in self.grads and self.types[root].rank:
            # autograd's gradient for the memory is what is left of the tangent: zeros with a history
            new = self.emit(
                "aten.slice_scatter.default",
                (Ref(old), Ref(new), 0, 0, self.types[root].sizes[0], 1), self.types[root])
        self.is_grad_enabled = was
        if new != written and self.grads:
            self.stored.append((written, new))
        self.roots[root].current = new
        self.roots[root].version += 1

    def emit(self, name: str, args: tuple, type: Type, attrs: tuple = ()) -> int:
        """Appends a functional op with one result."""
        value = self.builder.fresh()
        self._add(Op(name, args, (value,), (type,), attrs))
        return value

    def _add(self, op: Op) -> None:
        """Appends a functional op, which runs in the grad mode of the op under way."""
        if op.is_grad_enabled is not self.is_grad_enabled or op.region != self.region:
            op = replace(op, is_grad_enabled=self.is_grad_enabled, region=self.region)
        self.builder.append(op)
        if self.grads and self.is_grad_enabled and op.name not in _CUT_OFF:
            if not self.grads.isdisjoint(op.refs()):
                self.grads.update(
                    r for r, t in zip(op.results, op.types)
                    if r not in self.types and _is_differentiable(t))

    def _in_layout(self, value: int, type: TensorType) -> int:
        """`value` with the strides that its memory has, where it can have them at all."""
        found = self.builder.type_of[value]
        if found.strides == type.strides or not is_dense(type):
            return value
        return self.emit("aten.clone.default", (Ref(value),), type)

    def _require_writable(self, value: int) -> None:
        """Raises Unsupported for memory, or a view on the way there, that holds an element twice."""
        if overlaps_itself(self.types[value]):
            raise Unsupported("written_overlap", f"{self.types[value]} repeats elements in memory")
        if value in self.sharing:
            detail = f"{self.types[value]} may share memory with another input"
            raise Unsupported("written_overlap", detail)

    # ------------------------------------------------------------------ one op
    def append(self, op: Op) -> None:
        self.is_grad_enabled, self.region = op.is_grad_enabled, op.region
        for result, type in zip(op.results, op.types):
            if self._is_known(result) and type != self.types[result]:
                raise Unsupported("metadata_write", f"{self.types[result]} became {type}")
        changed = writes_unseen(op) if op.name in SILENT_WRITES else ()
        if changed:
            self._append_silent(op, changed)
        elif op.writes:
            self._append_writing(op)
        elif op.name in VIEWS and self._shares_memory(op):
            self._append_views(op)
        else:
            self._append_pure(op)

    def require_unread(self) -> None:
        """What is written unseen is read by nothing else: it might come before or after the write."""
        hidden = [op for op in self.graph.ops if op.name in HIDDEN_WRITES and writes_unseen(op)]
        written = {self._root_of(value) for op in hidden for value in writes_unseen(op)}
        for op in self.graph.ops if written else ():
            # the backward of a batch norm is given them too, and does not read them
            if op in hidden or op.name.endswith("batch_norm_backward.default"):
                continue
            if not written.isdisjoint(map(self._root_of, op.refs())):
                raise Unsupported("written_by_library", f"{hidden[0].name}, and {op.name} reads it")

    def _root_of(self, value: int) -> int:
        return self.views[value].root if value in self.views else value

    def _renamed(self, op: Op) -> tuple[tuple, tuple]:
        def renamed(arg):
            return map_refs(arg, lambda ref: Ref(self.read(ref)))

        return tuple(map(renamed, op.args)), tuple((key, renamed(arg)) for key, arg in op.attrs)

    def _is_known(self, value: int) -> bool:
        return value in self.roots or value in self.views

    def _shares_memory(self, op: Op) -> bool:
        return any(alias != -1 for alias in op.aliases)

    def _append_pure(self, op: Op) -> None:
        """An op that makes new memory. Results that are known already are the op's own operands."""
        if not op.results and op.name in SPLITS:
            return  # the parts of an axis without elements
        fresh = [r for r in op.results if r != -1 and not self._is_known(r)]
        if not fresh and op.results and any(r != -1 for r in op.results):
            return  # it handed back its operand, as `contiguous` may
        for result, alias in zip(op.results, op.aliases):
            if alias != -1 and result in fresh:
                raise Unsupported("unknown_view", f"{op.name} gives a view of its operand")
        args, attrs = self._renamed(op)
        self._add(replace(op, args=args, attrs=attrs, writes=(), aliases=()))
        for result in fresh:
            self.roots[result] = _Root(result)

    def _append_views(self, op: Op) -> None:
        """One `_View` a result; an op that gives several views becomes one slice or select each."""
        source = op.args[0].id
        parent_type = self.types[source]
        singles = SPLITS[op.name](op, parent_type) if op.name in SPLITS else (op,)
        for result, type, single in zip(op.results, op.types, singles, strict=True):
            if result == -1 or self._is_known(result):
                continue
            single = replace(single, name=LAZY.get(single.name, single.name))
            parent, above = source, self.views.get(source)
            root, start = (parent, 0) if above is None else (above.root, above.offset)
            if single.name == "aten.as_strided.default":
                single, parent = self._from_root(single, root, start)
                start = 0
            inside = offset_of(single, self.types[parent], type)
            offset = None if start is None or inside is None else start + inside
            args = (Ref(parent), *single.args[1:])
            view = Op(
                single.name, args, (result,), (type,), single.attrs,
                is_grad_enabled=op.is_grad_enabled)
            self.views[result] = _View(root, parent, view, offset)
            self.read(result)

    def _from_root(self, op: Op, root: int, start: Dim | None) -> tuple[Op, int]:
        """`as_strided` looks at the whole storage: here a view of the root."""
        type = self.types[root]
        named = arguments(op)
        offset = named["storage_offset"]
        is_input = any(i.id == root for i in self.graph.inputs)
        if offset is None:  # of a view without elements nobody keeps where it begins
            offset = start if 0 not in self.types[op.args[0].id].sizes else None
        elif is_input:
            raise Unsupported(
                "unknown_view", "as_strided with an offset into a tensor from outside"
            )
        last = sum((n - 1) * s for n, s in zip(named["size"], named["stride"])) + (offset or 0)
        is_same = type.dtype == self.types[op.args[0].id].dtype
        if (
            offset is None
            or not is_same
            or not type.is_contiguous
            or (0 not in named["size"] and _may_be_at_most(type.elems, last))
        ):
            raise Unsupported(
                "unknown_view", f"as_strided of {type} that is not inside its elements"
            )
        return replace(op, args=(Ref(root), named["size"], named["stride"], offset), attrs=()), root

    def _append_silent(self, op: Op, changed: tuple[int, ...]) -> None:
        name, _, written = SILENT_WRITES[op.name]
        if len(changed) != len(written):
            self._append_pure(op)
            return
        args, attrs = self._renamed(op)
        fresh = tuple(self.builder.fresh() for _ in changed)
        types = tuple(self.types[value] for value in changed)
        self._add(Op(name, args, (*op.results, *fresh), (*op.types, *types), attrs))
        self.grads.difference_update(fresh)
        for result in op.results:
            self.roots[result] = _Root(result)
        for value, new in zip(changed, fresh):
            self.write(value, new)

    def _append_writing(self, op: Op) -> None:
        """An in-place or `out=` op: its functional form, then a write to each written argument."""
        name = FUNCTIONAL_NAMES.get(op.name) or functional(op.name)
        if name is None or any(r != -1 and not self._is_known(r) for r in op.results):
            raise Unsupported("written_by_library", op.name)
        if any(self._may_meet(a, b) for k, a in enumerate(op.writes) for b in op.writes[:k]):
            raise Unsupported("written_overlap", f"{op.name} writes one storage twice")
        pure, written, order = self._pure(op, name), [self.types[value] for value in op.writes], None
        if schema(name).is_random and not all(type.is_contiguous for type in written):
            order = self._order_of_draws(op)
            made = self._permuted(pure.args[0].id, order)
            pure = replace(pure, args=(Ref(made), *pure.args[1:]))
            written = [tensor(written[0].dtype, self.builder.type_of[made].sizes)]
        try:
            types = infer(pure, self.builder.type_of.__getitem__, written)
        except (NotImplementedError, RuntimeError, ValueError) as error:
            raise Unsupported("written_by_library", f"{op.name}: {error}") from error
        if len(types) != len(op.writes):
            raise Unsupported("written_by_library", op.name)
        fresh = tuple(self.builder.fresh() for _ in types)
        self._add(Op(pure.name, pure.args, fresh, types, pure.attrs))
        for target, value, type in zip(op.writes, fresh, types):
            if order is not None:
                value = self._permuted(value, tuple(map(order.index, range(len(order)))))
                type = self.builder.type_of[value]
            self.write(
                target, self._as_stored(value, type, self.types[target]), pure.name in _OVERWRITES)

    def _order_of_draws(self, op: Op) -> tuple[int, ...]:
        """The axes of what `op` fills with random numbers as they lie in memory, in whose order it draws."""
        type = self.types[op.writes[0]]
        if op.name not in _DRAWN_IN_MEMORY_ORDER or type.device != "cpu" or not is_dense(type):
            raise Unsupported("written_by_library", f"{op.name} of a tensor that is not contiguous")
        return tuple(reversed(by_stride(type)))

    def _permuted(self, value: int, axes: tuple[int, ...]) -> int:
        """`value` with its axes in the order `axes`."""
        type = self.builder.type_of[value]
        sizes, strides = (tuple(dims[axis] for axis in axes) for dims in (type.sizes, type.strides))
        return self.emit(
            "aten.permute.default", (Ref(value), axes), replace(type, sizes=sizes, strides=strides))

    def _pure(self, op: Op, name: str) -> Op:
        """`op` as a call of `name`, every argument given: their defaults may differ."""
        named = {
            key: map_refs(arg, lambda ref: Ref(self.read(ref)))
            for key, arg in arguments(op).items()
        }
        parameters = schema(name).parameters
        args = tuple(named[p.name] for p in parameters if not p.is_keyword_only)
        attrs = tuple(
            (p.name, named[p.name])
            for p in parameters
            if p.is_keyword_only and named[p.name] is not None
        )
        return Op(name, args, (), (), attrs)

    def _may_meet(self, a: int, b: int) -> bool:
        """Whether two recorded values may share an element of memory."""
        spans = []
        for value in (a, b):
            view, type = self.views.get(value), self.types[value]
            root, offset = (value, 0) if view is None else (view.root, view.offset)
            spans.append((root, offset, sum((n - 1) * s for n, s in zip(type.sizes, type.strides))))
        (root_a, start_a, reach_a), (root_b, start_b, reach_b) = spans
        if root_a != root_b or start_a is None or start_b is None:
            return root_a == root_b
        return _may_be_at_most(start_a, start_b + reach_b) and (
            _may_be_at_most(start_b, start_a + reach_a))

    def _as_stored(self, value: int, type: TensorType, memory: TensorType) -> int:
        """`value` in the dtype and sizes of the memory it goes to."""
        if type.dtype != memory.dtype:
            type = replace(type, dtype=memory.dtype)
            dtype = (("dtype", Token("dtype", memory.dtype)),)
            value = self.emit("aten._to_copy.default", (Ref(value),), type, dtype)
        if type.sizes != memory.sizes:
            raise Unsupported("metadata_write", f"{type} into {memory}")
        return value

    # ------------------------------------------------------------------ the end
    def finish(self, graph: Graph) -> Graph:
        self.region = 0
        inputs = [i.id for i in graph.inputs]
        roots = [*map(self._root_of, graph.outputs)]
        bases = [self._base(v) for v in graph.outputs]
        outputs = [self.read(v) for v in graph.outputs]
        aliases = [OutputAlias()] * len(outputs)
        home: dict[int, int] = {}  # base: the output that it is
        reals: dict[int, int] = {}  # complex root: the output that is its memory as real numbers
        for place, (value, base) in enumerate(zip(graph.outputs, bases)):
            if value == base and value not in inputs:
                home.setdefault(value, place)

        def at(root: int, offset: Dim) -> OutputAlias:
            if root in inputs:
                return OutputAlias("input", inputs.index(root), offset)
            if root not in home:
                home[root] = len(outputs)
                outputs.append(self.roots[root].current)
                aliases.append(OutputAlias())
            return OutputAlias("output", home[root], offset)

        for place, (value, root, base) in enumerate(zip(graph.outputs, roots, bases)):
            is_only = root not in inputs and roots.count(root) == 1 and not self._is_lazy(value)
            if is_only and (self._offset(value) is None or self._is_of_its_own(value)):
                continue  # a view that nobody can tell from memory of its own
            if self._offset(value) is None and self._is_all_real(root, graph.outputs):
                if root not in reals:
                    reals[root] = len(outputs)
                    outputs.append(self._as_reals(root))
                    aliases.append(OutputAlias())
                aliases[place] = OutputAlias("output", reals[root], self._offset_in_reals(value))
                continue
            if root == base:
                if home.get(root) != place:
                    aliases[place] = at(root, self._known_offset(value))
                if value == root:
                    outputs[place] = value if root in inputs else outputs[place]
                continue
            start = self._known_offset(base)
            if base not in home:
                detached = replace(at(root, start), is_detached=True)
                home[base] = len(outputs)
                outputs.append(self.read(base))
                aliases.append(detached)
            if home[base] == place:
                aliases[place] = replace(at(root, start), is_detached=True)
            else:
                aliases[place] = OutputAlias("output", home[base], _plain(self._known_offset(value) - start))
        writes = [(v, self.roots[v].current) for v in inputs if self.roots[v].current != v]
        return Graph(
            "aten",
            graph.inputs,
            tuple(self.builder.ops),
            tuple(outputs),
            tuple(writes),
            tuple(aliases),
            grads=tuple(sorted(self.grads & self.builder.type_of.keys())),
            grad_outputs=self._grad_outputs(graph, outputs, aliases),
            stored=tuple(self.stored),
        )

    def _base(self, value: int) -> int:
        """What autograd knows `value` as a view of: the last detached one on the way, else the root."""
        while value in self.views and self.views[value].op.name not in _CUT_OFF:
            value = self.views[value].parent
        return value

    def _is_all_real(self, root: int, outputs: tuple[int, ...]) -> bool:
        """Whether `root` is complex memory made here, of which only real and imaginary parts are `outputs`."""
        is_made_here = not any(i.id == root for i in self.graph.inputs)
        return is_made_here and all(
            self._offset_in_reals(value) is not None and self._base(value) == root
            for value in outputs if self._root_of(value) == root)

    def _offset_in_reals(self, value: int) -> Dim | None:
        """Of a real view in its complex root, in real numbers; None if it is none."""
        inside: Dim = 0
        while value in self.views:
            view = self.views[value]
            if view.op.name == _AS_REALS:
                start = self._offset(view.parent)
                return None if start is None else _plain(inside + start * 2)
            step = offset_of(view.op, self.types[view.parent], self.types[value])
            if step is None:
                return None
            inside, value = inside + step, view.parent
        return None

    def _as_reals(self, root: int) -> int:
        """All of a complex root: [.., 2] of its real and imaginary parts."""
        type = self.types[root]
        dtype = _PARTS[type.dtype]
        made = replace(type, dtype=dtype, sizes=(*type.sizes, 2), strides=(*(n * 2 for n in type.strides), 1))
        return self.emit(_AS_REALS, (Ref(self.roots[root].current),), made)

    def _is_of_its_own(self, value: int) -> bool:
        """Whether `value` is all of its root, of which autograd knows nothing: a copy in another shape (`x.T.reshape(-1)`),
        or detached, and autograd has nothing to do with that."""
        view = self.views.get(value)
        if view is not None and view.op.name == _UNSAFE and view.parent == view.root:
            return True
        return (
            view is not None and self._base(value) == value and view.offset == 0
            and self.types[value] == self.types[view.root] and self.roots[view.root].current not in self.grads)

    def _offset(self, value: int) -> Dim | None:
        """Of `value` in its root."""
        return self.views[value].offset if value in self.views else 0

    def _known_offset(self, value: int) -> Dim:
        offset = self._offset(value)
        if offset is None:
            raise Unsupported("unknown_view", f"an output of type {self.types[value]}")
        return offset

    def _grad_outputs(self, graph: Graph, outputs: list[int], aliases: list) -> tuple[int, ...]:
        """The places of the outputs that require grad, memory that is appended included."""
        found = tuple(place for place, value in enumerate(outputs) if value in self.grads)
        known = len(graph.outputs)
        if self.grads and tuple(p for p in found if p < known) != graph.grad_outputs:
            raise Unsupported("unknown_history", "which outputs require grad does not follow")
        return found

    def _is_lazy(self, value: int) -> bool:
        """Whether eager computes `value`, or a view above it, only when it is read."""
        while value in self.views:
            if self.views[value].op.name in LAZY.values():
                return True
            value = self.views[value].parent
        return False


def _unwritten_outputs(graph: Graph) -> set[int]:
    """The outputs that require grad as the op gave them: nothing writes to their memory."""
    roots = graph.roots()
    written = {roots.get(value, value) for op in graph.ops for value in op.writes}
    found = {graph.outputs[place] for place in graph.grad_outputs}
    return {value for value in found if roots.get(value, value) not in written}


def _is_differentiable(type: Type) -> bool:
    return isinstance(type, TensorType) and type.kind in "fc"


def is_dense(type: TensorType) -> bool:
    """Whether the elements fill their memory without gaps or repetition, in some order of axes."""
    if 0 in type.sizes:
        return True
    expected: Dim = 1
    for stride, size in _by_stride(type):
        if stride != (normal(expected) if is_unhinted(expected) else expected):
            return False
        expected = expected * size
    return True


def _by_stride(type: TensorType) -> list[tuple[Dim, Dim]]:
    """Stride and size of each axis of several elements, short steps first."""
    if any(map(is_unhinted, (*type.sizes, *type.strides))):
        return [
            (type.strides[k], type.sizes[k]) for k in by_stride(type) if type.sizes[k] != 1]
    axes = [(s, n) for n, s in zip(type.sizes, type.strides) if n != 1]
    return sorted(axes, key=lambda axis: tuple(map(estimate, axis)))


def _may_be_at_most(first: Dim, second: Dim) -> bool:
    """Whether first <= second for any size."""
    if not is_unhinted(first) and not is_unhinted(second):
        return first <= second
    return decide("le", first, second) is not False


def _is_at_most(first: Dim, second: Dim) -> bool:
    """Whether first <= second. Raises Unsupported where that hangs on sizes."""
    if not is_unhinted(first) and not is_unhinted(second):
        return first <= second
    found = decide("le", first, second)
    if found is None:
        raise Unsupported("symbolic", f"whether {first} is at most {second}")
    return found


def overlaps_itself(type: Type) -> bool:
    """Whether two elements may lie at one address: a stride of 0, or strides that interleave."""
    if not isinstance(type, TensorType) or 0 in type.sizes:
        return False
    reach: Dim = 0
    for stride, size in _by_stride(type):
        if _is_at_most(stride, reach):
            return True
        reach = reach + stride * (size - 1)
    return False


def _plain(offset: Dim) -> Dim:
    return normal(offset) if is_unhinted(offset) else offset
