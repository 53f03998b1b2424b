"""The recorder: what a program does to tensors, op by op, as a graph at level aten.

    recorder = Recorder(outside, fail, live, tested, limit_ops=20_000)
    recorder.enter(); y = model(x)      # below autograd: composites arrive decomposed
    recorder.leave(); graph = recorder.finish([recorder.value_of(y)], names, alias_sets)

A torch dispatch mode. Each op runs for real, then becomes an `Op` with the arguments torch got, the
types it really gave, what it wrote (from its schema) and whose memory its results share (from their
storages). Values are told apart by the identity of the tensor object; a weak reference forgets a
tensor when it dies, so the recorder keeps none alive and a reused id is never mistaken. An op that
raises leaves no trace if it always does with such tensors; else the call cannot be captured.

`outside(tensor)` says which source an unknown tensor has (None: it was reached behind our back);
`tested(graph, sources, answer)` is told of a branch that a few ops on inputs decide;
`number(scalar)` gives a source to the number that a symbolic argument stands for (`bridge/symint`);
`live(tensor)` gives a source to a tensor of numbers that is too long to be spelled out;
`fail(reason, detail)` is told when the call cannot be captured. An op cannot be stopped half way in
C++, so a failure is only noted: recording stops, and the watcher gives up at its next hook.

`__torch_dispatch__` is assigned after the class exists: defined in the class body it would be
wrapped by `__init_subclass__`, which imports torch's own compiler (1.7 s).
"""

import contextlib
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from preheat.base.identity import identity
from preheat.bridge import bounds
from preheat.bridge.history import history
from preheat.bridge.ops import overload
from preheat.bridge.overloads import Overload
from preheat.bridge.symint import Shown, is_box, unboxed
from preheat.bridge.tensors import dtype_name, extent, is_plain, overlap_in_part, storage_key, type_of
from preheat.ir.graph import Arg, Builder, Graph, Op, Ref, Token, refs_of
from preheat.capture.branches import BranchRecorder
from preheat.capture.dispatching import dispatch
from preheat.capture.elements import ElementRecorder
from preheat.capture.foreach import spread
from preheat.capture.literals import runs, vector
from preheat.capture.recurrent import BACKWARD, RECURRENT, translated
from preheat.capture.sized_recorder import SizedRecorder, holds_scalar, tensors_in
from preheat.ir.scalar import Scalar
from preheat.ir.types import NoneType, ScalarType, TensorType, Type

MAX_CONSTANT_ELEMS = 64  # a longer list of numbers in the program is kept as a live tensor

_is_grad_enabled = torch.is_grad_enabled
_Tensor = torch.Tensor
_PLAIN = frozenset((int, float, bool, str, type(None), complex))
_TOKENS: dict[type, tuple[str, Callable[[Any], str]]] = {
    torch.dtype: ("dtype", lambda value: dtype_name(value)),
    torch.device: ("device", str),
    torch.layout: ("layout", lambda value: str(value).removeprefix("torch.")),
    torch.memory_format: ("memory_format", lambda value: str(value).removeprefix("torch.")),
}
# What C makes of a lazy operand (`x.conj()`) before an op that wants its elements: below autograd, which has the
# edge to the operand all the same and says of the copy that it needs no gradient.
_RESOLVES = "aten.clone.default"
# In-place ops that change sizes or strides of their argument, and the view each of them is.
_VIEW_OF_INPLACE = {
    "aten.unsqueeze_.default": "aten.unsqueeze.default",
    "aten.squeeze_.default": "aten.squeeze.default",
    "aten.squeeze_.dim": "aten.squeeze.dim", "aten.squeeze_.dims": "aten.squeeze.dims",
    "aten.t_.default": "aten.t.default", "aten.transpose_.default": "aten.transpose.int",
    "aten.as_strided_.default": "aten.as_strided.default",
}


class Recorder(BranchRecorder, SizedRecorder, ElementRecorder, TorchDispatchMode):
    """Records the ops that run while it is entered. See the module docstring."""

    def __init__(
        self,
        outside: Callable[[torch.Tensor], int | None],
        fail: Callable[[str, str], None],
        live: Callable[[torch.Tensor], int],
        tested: Callable[[Graph, tuple[int, ...], bool], None],
        limit_ops: int = 50_000,
        number: Callable[[Scalar], int] | None = None,
        outside_type: Callable[[int, torch.Tensor], TensorType] = lambda _, tensor: type_of(tensor),
        is_generating: bool = False,
    ) -> None:
        super().__init__()
        self.is_generating = is_generating  # random numbers: see `bridge/draws.py`
        self.number, self.outside_type = number, outside_type
        # a call is under way that was given symbolic numbers, and has come to so many ops
        self.is_boxed, self.boxed_ops = False, 0
        # ... of which one wrote to what was there before, below this value, or drew random numbers
        self.has_acted, self.first_of_call = False, 0
        self.outside, self.fail, self.live, self.tested = outside, fail, live, tested
        self.limit_ops = limit_ops
        self.is_stopped = self.is_entered = False
        self.region = 0  # the number of the checkpoint that ops run inside of
        self.begin()

    def begin(self, has_tests: bool = True) -> None:
        """A new graph: every tensor that exists is from outside of it.

        `has_tests`: a branch may become a guard; a chain that has been cut already asks the answer
        as a host call, once, where guards of many nodes would compute it again.
        """
        self.has_tests = has_tests
        self.builder = Builder("aten")
        self.input_sources: list[int] = []
        self.input_extents: list[tuple[int, int] | None] = []  # None of a number
        self.written_inputs: dict[int, int] = {}  # input value -> source
        self.values: dict[int, _Known] = {}
        self._storages: dict[int, list[int]] = {}  # storage -> [live tensors, first value]
        self.root: dict[int, int] = {}  # value -> first value of its storage
        self.read_by_regions: set[int] = set()  # roots: what closed checkpoints have read from outside
        self.fixed_roots: set[int] = set()  # roots whose content follows from no input and no chance
        self.source_of_value: dict[int, int] = {}
        self._needs_grad: dict[int, bool] = {}  # value -> whether it did when it was first read
        self.inputs_of_numbers: dict[int, int] = {}  # source -> input value
        self.begin_sizes()
        self.begin_elements()

    def is_fixed(self, tensor: torch.Tensor) -> bool:
        """Whether the elements of `tensor` are the same in every replay, whatever the inputs."""
        known = self.values.get(identity(tensor))
        return known is not None and self.root[known.value] in self.fixed_roots

    def made(self, tensor: torch.Tensor) -> bool:
        """Whether an op of this recording gave `tensor`."""
        known = self.values.get(identity(tensor))
        return known is not None and known.value not in self.source_of_value

    def is_of_call(self, tensor: torch.Tensor) -> bool:
        """Whether the memory of `tensor` was made in the call under way that was given symbolic numbers."""
        known = self.values.get(identity(tensor))
        root = -1 if known is None else self.root[known.value]
        return root >= self.first_of_call and root not in self.source_of_value

    def enter(self) -> None:
        """Ops are recorded from now on. A weight that autocast has cast before is cast, and
        seen, again."""
        torch.clear_autocast_cache()
        self.__enter__()
        self.is_entered = True

    def leave(self) -> None:
        """Ops are recorded no longer. Under a mode that the program has entered since, this
        waits."""
        self.is_stopped = True
        depth = torch._C._len_torch_dispatch_stack()
        if self.is_entered and depth and torch._C._get_dispatch_stack_at(depth - 1) is self:
            self.__exit__(None, None, None)
            self.is_entered = False

    def mark(self) -> tuple:
        """How far the graph has come."""
        return (
            self.builder, len(self.builder.ops), len(self.input_sources), len(self.written_inputs),
            self.builder.next_id)

    def rewind(self, mark: tuple) -> None:
        """Forgets the ops since `mark`, and any failure: they are no part of the graph."""
        builder, ops, inputs, written, first = mark
        self.is_stopped = False
        if builder is not self.builder:  # another graph was begun since
            ops, inputs, written, first = 0, 0, 0, 0
        for known in [known for known in self.values.values() if known.value >= first]:
            self._forget(known)
        del self.builder.ops[ops:]
        del self.builder.inputs[inputs:], self.input_sources[inputs:], self.input_extents[inputs:]
        kept = set(self.input_sources)
        self.inputs_of_numbers = {s: value for s, value in self.inputs_of_numbers.items() if s in kept}
        for value in list(self.written_inputs)[written:]:
            del self.written_inputs[value]

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """Ops that run inside are none of the call's, nor do they see a dispatch mode of ours."""
        depth = torch._C._len_torch_dispatch_stack()
        if not depth or torch._C._get_dispatch_stack_at(depth - 1) is not self:
            with self.paused():
                yield
            return
        self.__exit__(None, None, None)
        self.is_entered = False
        try:
            yield
        finally:
            self.enter()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Ops that run inside are none of the call's."""
        was, self.is_stopped = self.is_stopped, True
        try:
            yield
        finally:
            self.is_stopped = was

    def value_of(self, tensor: torch.Tensor) -> int | None:
        """The number of the value that `tensor` is, or None if no op gave or took it."""
        known = self.values.get(identity(tensor))
        return None if known is None else known.value

    def root_of(self, tensor: torch.Tensor) -> int | None:
        """The first value of the memory of `tensor`, itself known or not, or None if no op gave or took it."""
        entry = self._storages.get(storage_key(tensor)) if is_plain(tensor) else None
        return None if entry is None else entry[1]

    def live_inputs(self) -> list["_Known"]:
        """The tensors from outside that are still alive: `known()`, and `known.history` before the
        first op, the node of autograd that gave it."""
        return [
            known for known in self.values.values()
            if known.value in self.source_of_value and known() is not None]

    def finish(
        self, outputs: list[int], names: list[str], alias_sets: list[int],
        grad_outputs: tuple[int, ...] = (),
    ) -> Graph | None:
        """The graph with these outputs, or None if no op ran. A name and an alias set for each
        input; the places of the outputs that require grad."""
        if not self.builder.ops:
            return None
        self.builder.inputs[:] = [
            replace(given, name=name, alias_set=alias_set)
            for given, name, alias_set in zip(self.builder.inputs, names, alias_sets, strict=True)
        ]
        graph = self.builder.finish(outputs)
        if not any(op.is_grad_enabled for op in graph.ops):
            return graph  # no gradient goes through it
        grads = tuple(value for value in graph.types() if self._needs_grad.get(value))
        return replace(graph, grads=grads, grad_outputs=grad_outputs)

    def needing_grad(self) -> list[int]:
        """The values that required grad when they were first read."""
        return [value for value, needs in self._needs_grad.items() if needs]

    # ------------------------------------------------------------------ one op
    def record(self, facts: Overload, args: tuple, kwargs: dict, out: Any) -> None:
        """Appends the op that took `args` and gave `out`."""
        parts = spread(facts, args, kwargs, out)
        if facts.name in RECURRENT:
            call = translated(facts, args, out)
            if call is None:
                return self.stop("untracked_tensor", "the random numbers of cuDNN's dropout")
            parts = (call,)
        if parts is not None:
            for part in parts:
                self.record(*part)
            return
        encode = self.encode
        encoded = tuple([encode(a) for a in args])
        attrs = tuple([(k, encode(v)) for k, v in kwargs.items()]) if kwargs else ()
        if self.is_stopped:
            return
        name = facts.name
        if self.is_boxed and (boxes := bounds.boxes_in(args, kwargs)):
            bounds.ask(overload(name), boxes, out)
        writes = self._writes(facts, unboxed(args), unboxed(kwargs)) if facts.writes else ()
        rebinds = name in _VIEW_OF_INPLACE
        if rebinds:
            name, writes = _VIEW_OF_INPLACE[name], ()
            changed = unboxed(args[0])
            before = self.value_of(changed)
            if not self._rebind(changed):
                return
            if self.rehearsal is not None and before is not None:
                self._stand_in(changed, before)
        results: list[int] = []
        types: list[Type] = []
        aliases: list[int] = []
        if self.rules is not None and self.rehearsal is None:
            self.find_types(facts, name, encoded, attrs, out)
        for one in out if type(out) in (tuple, list) else (out,):
            self._result(one, results, types, aliases, facts.name)
        self.found.clear()
        if self.is_stopped:
            return
        self._spread_fixed(facts, encoded, attrs, results, writes)
        self.builder.ops.append(Op(
            name, encoded, tuple(results), tuple(types), attrs, writes, tuple(aliases),
            _is_grad_enabled(), region=self.region,
        ))
        if name == _RESOLVES and _is_grad_enabled():
            lazy = unboxed(args[0])
            if lazy.is_conj() or lazy.is_neg():
                self._needs_grad[results[0]] = lazy.requires_grad
        self.follow(self.builder.ops[-1], args, kwargs)
        if len(self.builder.ops) > self.limit_ops:
            self.stop("limit_ops", f"{self.limit_ops} ops")

    def constant(self, tensor: torch.Tensor) -> int:
        """The value of a tensor that torch made from numbers of the program (lift_fresh)."""
        if tensor.numel() > MAX_CONSTANT_ELEMS or tensor.layout is not torch.strided:
            return self._live_constant(tensor)
        numbers = tensor.reshape(-1).tolist()
        type = type_of(tensor)
        factory = (("dtype", Token("dtype", type.dtype)), ("device", Token("device", type.device)))
        if len(set(map(repr, numbers))) <= 1:
            fill = numbers[0] if numbers else 0
            value = self.emit("aten.full.default", (type.sizes, fill), type, factory)
        else:
            parts = [
                self.emit("aten.full.default", ((length,), number), vector(type, length), factory)
                for number, length in runs(numbers)
            ]
            whole = vector(type, len(numbers))
            value = self.emit("aten.cat.default", (tuple(map(Ref, parts)),), whole)
            if type.rank != 1:
                value = self.emit("aten.view.default", (Ref(value), type.sizes), type, alias=value)
        self._learn(tensor, value)
        return value

    def stop(self, reason: str, detail: str) -> None:
        """Notes that the call cannot be captured; recording ends."""
        if not self.is_stopped:
            self.is_stopped = True
            self.fail(reason, detail)

    # ------------------------------------------------------------------ values
    def take_over(self, op: Op) -> None:
        """One more op of the graph, which runs elsewhere; its results are `fresh` values, in new memory."""
        self.builder.append(op)
        self.root.update((result, result) for result in op.results if result != -1)

    def learn(self, tensor: torch.Tensor, value: int) -> None:
        """`tensor` is the result `value` of an op that was taken over."""
        self._learn(tensor, value)

    def new_input(
        self, source: int, type: Type, extent: tuple[int, int] | None = None, name: str = "",
        tensor: Any = None,
    ) -> int:
        """The value of one more input; of a number no `extent`. `tensor`: the object, if it is one."""
        value = self.builder.input(type, name)
        self.root[value] = value
        self.input_sources.append(source)
        self.input_extents.append(extent)
        self.source_of_value[value] = source
        if isinstance(tensor, _Tensor):
            self._learn(tensor, value)
        return value

    def _spread_fixed(
        self, facts: Overload, args: tuple, attrs: tuple, results: list, writes: tuple,
    ) -> None:
        """What is computed from fixed values alone is fixed; what is written from others is no
        longer."""
        fixed, root = self.fixed_roots, self.root
        is_fixed = not facts.is_random and not any(map(holds_scalar, (args, attrs))) and all(
            root[ref] in fixed for ref in (*refs_of(args), *refs_of(tuple([v for _, v in attrs])))
        )
        if is_fixed:
            fixed.update(value for value in results if root.get(value) == value)
        else:
            fixed.difference_update([root[value] for value in writes])

    def encode(self, arg: Any) -> Arg:
        kind = type(arg)
        if kind in _PLAIN or kind is Scalar:
            return arg
        if self.is_boxed and is_box(arg):
            return self.number_of(arg)
        if kind is Shown:
            arg = arg.meant
        if isinstance(arg, _Tensor):
            known = self.values.get(identity(arg))
            value = self._input(arg) if known is None else known.value
            self._needs_grad.setdefault(value, arg.requires_grad)
            return Ref(value)
        if kind is list or kind is tuple or kind is torch.Size:
            encode = self.encode
            return tuple([encode(a) for a in arg])
        token = _TOKENS.get(kind)
        if token is not None:
            return Token(token[0], token[1](arg))
        self.stop("op_argument", f"{kind.__module__}.{kind.__qualname__}")
        return None

    def _input(self, tensor: torch.Tensor) -> int:
        """The value of a tensor that no op gave: an input, if it has a source."""
        source = self.outside(tensor)
        if source is None:
            what = str(type_of(tensor)) if is_plain(tensor) else type(tensor).__name__
            self.stop("untracked_tensor", what)
            return -1
        if tensor.is_neg():  # kernels read memory as it is
            self.stop("tensor_subclass", "a view whose elements are stored negated: resolve_neg() makes a plain one")
            return -1
        value = self.new_input(
            source, self.outside_type(source, tensor), extent(tensor), tensor=tensor)
        self.values[identity(tensor)].history = history(tensor)
        return value

    def _learn(self, tensor: torch.Tensor, value: int) -> int:
        """Binds the object `tensor` to `value`; returns the first value that had its storage."""
        key = storage_key(tensor)
        entry = self._storages.get(key)
        if entry is None:
            self._storages[key] = entry = [0, self.root.get(value, value)]
        entry[0] += 1
        self.root[value] = entry[1]
        known = _Known(tensor, self._forget)
        known.key, known.value, known.storage, known.history = identity(tensor), value, key, None
        self.values[known.key] = known
        return entry[1]

    def _forget(self, known: "_Known") -> None:
        if self.values.get(known.key) is known:
            del self.values[known.key]
        entry = self._storages.get(known.storage)
        if entry is not None:
            entry[0] -= 1
            if entry[0] == 0:
                del self._storages[known.storage]

    def _result(self, one: Any, results: list, types: list, aliases: list, op: str) -> None:
        if isinstance(one, _Tensor):
            if one.layout is not torch.strided or one.is_nested:
                return self.stop("tensor_subclass", f"{op} gave a tensor of {'rows' if one.is_nested else one.layout}")
            type = self.found.get(identity(one)) or type_of(one)
            known = self.values.get(identity(one))
            if known is not None:
                results.append(known.value)
                aliases.append(known.value)
                if not self.is_now(self.builder.type_of[known.value], one):
                    was = self.builder.type_of[known.value]
                    self.stop("metadata_write", f"{was} became {type}")
            else:
                value = self.builder.fresh()
                root = self._learn(one, value)
                if root in results and op == BACKWARD:  # gradients side by side in one buffer
                    root = self.root[value] = value
                results.append(value)
                aliases.append(-1 if root == value else root)
                self.builder.type_of[value] = type
            types.append(type)
        elif one is None:
            results.append(-1)
            types.append(NoneType())
            aliases.append(-1)
        elif isinstance(one, (list, tuple)):
            for part in one:
                self._result(part, results, types, aliases, op)
        elif not op.startswith("aten."):
            self.stop("data_dependent_number", op)
        else:  # of torch's own ops that no tag refuses: numbers that follow from sizes alone
            results.append(self.builder.fresh())
            types.append(ScalarType(one.__class__.__name__))
            aliases.append(-1)

    def _writes(self, facts: Overload, args: tuple, kwargs: dict) -> tuple[int, ...]:
        written: list[int] = []
        operands = [
            t.meant if type(t) is Shown else t
            for t in (*tensors_in(args), *tensors_in(tuple(kwargs.values())))]
        for position, name in facts.writes:
            arg = args[position] if position < len(args) else kwargs.get(name)
            for tensor in arg if type(arg) in (list, tuple) else (arg,):
                if not isinstance(tensor, _Tensor):
                    continue
                tensor = tensor.meant if type(tensor) is Shown else tensor
                value = self.values[identity(tensor)].value
                written.append(value)
                if any(overlap_in_part(tensor, operand) for operand in operands):
                    self.stop("overlapping_write", facts.name)
                if self.rules is not None and self.rehearsal is None:
                    self.pin_relatives(value, [self.values[identity(t)].value for t in operands])
                root = self.root[value]  # an input's memory may be written through a view
                if root in self.read_by_regions:
                    self.stop("impure_region", f"{facts.name} later writes to what it has read")
                if root in self.source_of_value:
                    self.written_inputs[root] = self.source_of_value[root]
                is_other = not self.is_now(self.builder.type_of[value], tensor)
                if is_other and facts.name not in _VIEW_OF_INPLACE:
                    self.stop("metadata_write", f"{facts.name} changed the sizes of a tensor")
        return tuple(written)

    def may_detach(self, tensor: torch.Tensor) -> bool:
        """Whether `tensor`, which loses its history now, was made here and not used with it: a value has one
        history. If so, it has none from now on."""
        known = self.values.get(identity(tensor))
        if known is None or known.value in self.source_of_value:
            return False
        if self._needs_grad.get(known.value) and any(known.value in op.refs() for op in self.builder.ops):
            return False
        self._needs_grad[known.value] = False
        return True

    def is_weight_buffer(self, facts: Overload, args: tuple) -> bool:
        """Whether an op that gives a tensor another storage is the one by which eager hands the weights of a recurrent
        network to cuDNN: the tensor was made empty just before. It is none of the graph's from then on; who else
        uses it than what `translated` knows meets a tensor that no op gave."""
        last = self.builder.ops[-1] if self.builder.ops else None
        if facts.name != "aten.set_.source_Storage" or last is None or (
                last.name, last.args) != ("aten.empty.memory_format", ((0,),)):
            return False
        known = self.values.get(identity(args[0]))
        if known is None or (known.value,) != last.results:
            return False
        self._forget(known)
        return True

    def _rebind(self, tensor: torch.Tensor) -> bool:
        """Before the result of `x.unsqueeze_()` is numbered: x, if made here, becomes a new
        value."""
        known = self.values[identity(tensor)]
        if not self.made(tensor):
            self.stop("metadata_write", "an in-place view of a tensor from outside")
            return False
        del self.values[known.key]
        self._storages[known.storage][0] -= 1  # its result is learned next, of the same storage
        return True

    def _stand_in(self, tensor: torch.Tensor, value: int) -> None:
        """A call that is made again meets `tensor` as it was before an in-place view, too: as another one, which is `value`."""
        type = self.builder.type_of[value]
        made = torch.as_strided(tensor.detach(), type.sizes, type.strides, tensor.storage_offset())
        self._learn(made.requires_grad_(tensor.requires_grad), value)
        self.rehearsal.was(tensor, made)

    def emit(
        self, name: str, args: tuple, type: TensorType, attrs: tuple = (), alias: int = -1,
    ) -> int:
        """The value of an op that nobody has called, of what is fixed."""
        value = self.builder.fresh()
        grad = _is_grad_enabled()
        self.builder.append(Op(
            name, args, (value,), (type,), attrs, (), (alias,), grad, region=self.region))
        self.root[value] = value if alias < 0 else self.root[alias]
        self.fixed_roots.add(self.root[value])
        return value

    def _live_constant(self, tensor: torch.Tensor) -> int:
        kept = tensor.detach().clone()
        type = type_of(kept)
        # a copy: nothing else has its memory
        given = self.new_input(self.live(kept), type, (0, 0), "constant")
        value = self.emit("aten.clone.default", (Ref(given),), type)
        self._learn(tensor, value)
        return value


class _Known(weakref.ref):
    """A weak reference to a tensor with its id, its value and its storage."""

    __slots__ = ("key", "value", "storage", "history")


Recorder.__torch_dispatch__ = dispatch
