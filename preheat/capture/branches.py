"""Branches of the program on a bool that a few ops on inputs decide.

    if mask.all(): ...      ->      guard test (%0: bool[8]): %1 = aten.all.default(%0) is True

Such a branch is a guard, computed before the call; any other look at a tensor's truth is a host call.
"""

from collections.abc import Callable
from typing import Any

from preheat.base.identity import identity
from preheat.bridge.ops import overload
from preheat.bridge.overloads import facts_of
from preheat.bridge.tensors import Tensor, dtype_name
from preheat.capture.sizes import finished
from preheat.ir.graph import Builder, Graph
from preheat.ir.types import ScalarType, TensorType, Type

# A branch of the entry that so few ops on inputs decide becomes a guard. It runs them one by one, in Python, so
# that more are dearer than a host call between two graphs, unless there must be one graph.
MAX_TEST_OPS = 4
MAX_TEST_OPS_OF_WHOLE = 24
MAX_OPS_OF_SIZES = 64  # as many if sizes and numbers alone decide: each answer is kept


class BranchRecorder:
    """The part of the recorder that judges branches."""

    builder: Builder
    values: dict[int, Any]
    root: dict[int, int]
    input_sources: list[int]
    has_tests: bool
    max_test_ops: int = MAX_TEST_OPS
    rules: Any
    tested: Callable[[Graph, tuple[int, ...], bool], None]
    paused: Callable[[], Any]

    def is_tested(self, tensor: Tensor) -> bool:
        """Whether the truth of `tensor` could be made a guard; it then is one."""
        found = self.test_of(tensor)
        if found is None:
            return False
        with self.paused():
            self.tested(*found, bool(tensor))
        return True

    def test_of(self, tensor: Tensor) -> tuple[Graph, tuple[int, ...]] | None:
        """The few pure ops from inputs to a bool of one element, and the sources of the inputs.

        None if it takes more than `max_test_ops` ops (`MAX_OPS_OF_SIZES`, if no tensor is among the
        inputs), if chance takes part, or if anything that
        takes part was written to: then the answer cannot be had from the inputs alone, before the
        call. None if floats decide: their answer changes from call to call, and a host call that
        the compiled ops come before is cheaper than a guard that runs them one by one.
        """
        known = self.values.get(identity(tensor))
        if known is None or dtype_name(tensor.dtype) != "bool" or tensor.numel() != 1:
            return None
        if not self.has_tests:
            return None
        wanted, taken = {known.value}, []
        for op in reversed(self.builder.ops):
            if wanted.isdisjoint(op.results):
                continue
            taken.append(op)
            wanted.update(op.refs())
            if len(taken) > MAX_OPS_OF_SIZES or facts_of(overload(op.name)).is_random:
                return None
        roots = {self.root[value] for value in wanted}
        if any(self.root[value] in roots for op in self.builder.ops for value in op.writes):
            return None
        given = [(i, s) for i, s in zip(self.builder.inputs, self.input_sources) if i.id in wanted]
        is_of_sizes = all(i.type == ScalarType("int") for i, _ in given)
        if not is_of_sizes and not (
                len(taken) <= self.max_test_ops and all(_is_mask(i.type) for i, _ in given)):
            return None
        graph = Graph("aten", tuple(i for i, _ in given), tuple(reversed(taken)), (known.value,))
        sources = tuple(s for _, s in given)
        return finished(graph, self.rules.numbers, sources) if self.rules else (graph, sources)


def _is_mask(type: Type) -> bool:
    """Whether a value is of integers or bools, as masks and lengths are."""
    return isinstance(type, TensorType) and not type.dtype.startswith(("float", "bfloat", "complex"))
