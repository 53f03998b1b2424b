"""A world of `mutations` with guards on everything reachable, bound to native rows."""

from consult import Book
from mutations import world
from native_rows import native_check

from preheat.run.check import Checker, Failure
from preheat.run.rows import bind_rows


class Bound:
    """A world with guards on everything reachable, checked once and bound to rows."""

    def __init__(self, without=()):
        self.world = world()
        book = Book()
        book.consult_call(self.world.target, self.world.args, self.world.kwargs)
        self.checker = Checker(book.trace(), self.world.target, book.objects)
        self.without = without
        self.rows = None
        assert self.bind() is None

    def bind(self) -> Failure | None:
        found = self.checker.resolve(self.world.args, self.world.kwargs)
        if isinstance(found, Failure):
            return found
        self.rows = bind_rows(self.checker, found, self.world.arguments, without=self.without)
        return None

    def native(self) -> bool:
        """Whether the native rows, and the guards that have none, accept the call."""
        row = native_check(self.rows, self.world.arguments)
        if self.rows.is_python(row):
            return self.rows.check_python(self.world.args, self.world.kwargs) is None
        return row == -1
