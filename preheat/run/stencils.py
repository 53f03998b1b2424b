"""Stencils: tables of a plan with symbols that are made once and serve many sizes.

    stencils = Stencils(make)
    stencils.at((4, 60), {"n3": 4, "n5": 60})      what runs at these sizes, None where it needs tables of its own

Tables hold estimates (what is worth giving the GIL away for), which are good for sizes that differ by as
many bits as `_SIZE_CLASS_BITS`; in a class several may be needed, since what is kept in memory hangs on
sizes, too.

    SizedPlan(plan, image, ...).at((4,))           the plan as a function of the list of its inputs
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from preheat.base.errors import Unsupported
from preheat.ir.hinted import Book
from preheat.ir.plan import Image, Plan
from preheat.ir.sized import at, with_hinted_sizes
from preheat.run.device import context
from preheat.run.driver import ProgramStencil
from preheat.run.entry import builtin
from preheat.run.executable import Executable, loaded
from preheat.run.lists import arguments_of, callable_of

_SIZE_CLASS_BITS = 3
_MOST_STENCILS = 3  # of one class

Values = tuple[int, ...]  # of the symbols of a plan, in its order


class Tables(Protocol):
    """What gives the callable at some sizes, None if it is not for them."""

    def at(self, sizes: Mapping[str, int]) -> Callable | None: ...


class Stencils:
    """make(values)   new tables, from these sizes. Raises Unsupported where none can be made for many"""

    def __init__(self, make: Callable[[Values], Tables]):
        self._make = make
        self._known: dict[int, tuple[Tables, ...] | None] = {}  # by size class

    def at(self, values: Values, sizes: Mapping[str, int]) -> Callable | None:
        """What runs at these sizes."""
        number = math.prod(n for n in values if type(n) is int).bit_length() // _SIZE_CLASS_BITS
        known = self._known.get(number, ())
        for tables in known or ():
            call = tables.at(sizes)
            if call is not None:
                return call
        if known is None or len(known) > _MOST_STENCILS:
            return None
        try:
            made = self._make(values)
        except Unsupported:
            self._known[number] = None
            return None
        self._known[number] = (*known, made)
        return made.at(sizes)


class SizedPlan:
    """`plan` with its code, at the sizes of each call.

    symbols  of the sizes in it;  hints: their values in calls that are known of
    asked    of its executables
    """

    def __init__(
        self, plan: Plan, image: Image | None, symbols: Sequence[str], hints: Sequence[Values],
        runtime: Image | None, **asked: Any,
    ):
        self.plan, self.symbols, self._hints = plan, tuple(symbols), hints
        self._kernels, self._runtime, self._asked = loaded(plan, image), runtime, asked
        self._stencils = Stencils(self._tables)

    def at(self, values: Values) -> Callable[[list], Sequence]:
        """A function of the list of its inputs, which it may empty."""
        sizes = dict(zip(self.symbols, values))
        found = self._stencils.at(values, sizes)
        if found is not None:
            return found
        return callable_of(Executable(at(self.plan, sizes), self._kernels, **self._asked), self._runtime)

    def _tables(self, values: Values) -> "_PlanTables":
        book = Book()
        plan = with_hinted_sizes(self.plan, self.symbols, (values, *self._hints), book)
        given = arguments_of(Executable(plan, self._kernels, **self._asked), self._runtime, context())
        if given is None:
            raise Unsupported("symbolic", "no native code in this process")
        return _PlanTables(ProgramStencil(self.symbols, book, *given), self._runtime)


class _PlanTables:
    def __init__(self, program: ProgramStencil, runtime: Image):
        self._program, self._runtime = program, runtime

    def at(self, sizes: Mapping[str, int]) -> Callable | None:
        program = self._program.at(sizes)
        return None if program is None else builtin(program, self._runtime)
