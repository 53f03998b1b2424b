"""The observer: every place at which capture watches and steers a program that the machine runs.

The machine (`machine.py`) interprets a program for real and knows nothing of torch. It tells an
`Observer` what the program reads, makes, writes and calls. With the plain `Observer` of this file
the program behaves exactly as under CPython; capture subclasses it.

    class Reads(Observer):
        def read_attribute(self, owner, namespace, name, value):
            print(f"{type(owner).__name__}.{name}")

    run(model.forward, (x,), {}, Reads())        # prints training, weight, bias, ...

Contract
* A hook that a subclass does not override costs nothing: the machine looks once, at the start.
* Hooks marked [known] are called only when `identity(object) in observer.known` for the object named in
  brackets. `known` is a dict from id to anything, owned and filled by the observer while the
  program runs; whoever puts an object in keeps it alive. All other hooks are called for every
  object.
* `numbers` is such a dict too, of ints and floats that the observer tells apart from equal ones by
  their identity. Operations of C on plain values, which otherwise no hook is told of, are told where
  one of them is in it: `calculate` performs arithmetic, `look_at` comes before C tests, compares,
  hashes or shows a value. Moving a number about is told as for any object.
* `read_attribute`, `read_member`, `read_global`, `read_cell` and `read_item` may return another value
  that the program then sees instead; None keeps the value.
* Read hooks come after the machine has the value and before the program sees it. Write hooks come
  before the write. Birth hooks come right after the object was made.
* Any hook may raise `GiveUp`. The machine then goes on WITHOUT the observer, from exactly there:
  nothing is done twice, nothing is left out, no hook is called again, Python functions called from
  now on run natively, and only the frames already open are interpreted to their end.
* Any other exception from a hook is a fault of the observer: it ends the run as `InternalError`.
  What `c_call` and `operate` raise is the program's own exception, unless it is a `GiveUp`.
* A hook must not run the program's Python code (no `==`, `repr`, `getattr` on the program's
  objects).
* Objects that pass through hooks are the program's own, never copies: compare with `is`.
"""

from typing import Any

from preheat.base.identity import identity

ABSENT: Any = type("Absent", (), {"__slots__": (), "__repr__": lambda self: "<absent>"})()
"""What `read_class` gives for a name that no class of the MRO has."""

NOT_DONE: Any = type("NotDone", (), {"__slots__": (), "__repr__": lambda self: "<not done>"})()
"""Default of `GiveUp.result`: the call or operation has not been performed."""

BIRTHS = (
    "list",
    "tuple",
    "dict",
    "set",
    "slice",
    "string",  # displays, *args, **kwargs, slices, f-strings
    "function",  # def, lambda, comprehension
    "cell",  # a local that an inner function captures
    "method",  # a function bound on attribute access
    "class",  # a class statement
    "instance",  # cls(...): told after __new__, before __init__
    "iterator",  # iter(o), by GET_ITER or iter()
    "generator",  # a generator function was called
    "result",  # result of an operator, subscript of a slice, C attribute (a fresh bound method)
    "call",  # result of c_call, told after it
    "exception",  # an exception was caught by the program (told at the handler)
    "module",  # result of an import statement
)
"""Kinds of birth, the second argument of `Observer.born`."""


class GiveUp(Exception):
    """Raised by a hook: watch no longer. `reason` is a row of `reasons.py`, `detail` its values.

    From `c_call` and `operate`, `result` is what the call returned if it was already performed;
    leave it out when it was not: the machine then performs it.
    """

    def __init__(self, reason: str, detail: str = "", result: Any = NOT_DONE):
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason, self.detail, self.result = reason, detail, result

    def bare(self) -> "GiveUp":
        """Without its traceback, whose frames would keep each other, and what dies with the
        program's frames, until the next collection."""
        self.__traceback__ = self.__cause__ = self.__context__ = None
        return self


class Observer:
    """Watches nothing. Subclass it and override the hooks you need.

    known, numbers   see the module docstring
    bytecode_limit   after so many bytecodes the machine gives up: `gave_up("bytecodes", ...)`
    """

    bytecode_limit: int = 2**62

    def __init__(self) -> None:
        self.known: dict[int, Any] = {}
        self.numbers: dict[int, Any] = {}

    def attached(self, machine: Any) -> None:
        """A machine starts to run under this observer."""

    # ----------------------------------------------------------------------- functions and calls
    def is_native(self, function: Any) -> Any:
        """True: do not interpret this Python function; it goes to `c_call` like a C function.
        Another function: interpret that one instead. False: interpret it.
        """
        return False

    def native_function(self, function: Any, why: str) -> None:
        """The machine cannot interpret this function and calls it through `c_call`.

        `why`: "coroutine", "async generator", "opcode NAME", "abc" (the checks of `abc.ABCMeta`) or
        "marked".
        """

    def entered(self, function: Any) -> None:
        """A Python function is about to run interpreted, its arguments bound.

        Read by the call: `__code__`, `__defaults__`, `__kwdefaults__`, `__closure__`,
        `__globals__`.
        """

    def c_call(self, function: Any, args: tuple, kwargs: dict) -> Any:
        """Performs a call of anything that is not interpreted, and returns its result.

        Functions, methods, types and callables of C, and Python functions marked native. Arguments
        are as the program passed them; `kwargs` is a fresh dict. Calls that `builtins.py` models
        (getattr, len, isinstance, sorted, ...) come as the reads and calls they consist of.
        """
        return function(*args, **kwargs)

    def operate(self, function: Any, args: tuple) -> Any:
        """Performs an operator that no Python dunder answers, and returns its result.

        `function` is of module `operator` (add, iadd, getitem, setitem, delitem, lt, neg, contains,
        ...) or `format`, `iter`, `next`, `len`, `bool`, `hash`; `args` its operands. Called when an
        operand is of a class that is not a plain builtin. Operators on int, float, str, bool, None,
        bytes, complex alone are not told; those on list, tuple, dict, set, slice and range come as
        reads, births and writes instead, where a hook of that name exists, else here.
        """
        return function(*args)

    def calculate(self, function: Any, args: tuple) -> Any:
        """[numbers: any of args] Performs arithmetic of C on plain values, and returns its result.

        Tests too: `function` is of module `operator`, or bool; `args` are its operands: numbers,
        strings, None, ...
        """
        return function(*args)

    def look_at(self, value: Any) -> None:
        """C is about to look at `value`, or at what is in it: a test, a comparison, a key, text.

        Told while `numbers` is not empty, for plain values and builtin containers.
        """

    # ------------------------------------------------------------------------------------- reads
    def read_attribute(self, owner: Any, namespace: dict, name: str, value: Any) -> Any:
        """[known: owner] `name` was found in the instance or module dict `namespace` of `owner`."""

    def miss_attribute(self, owner: Any, namespace: dict, name: str) -> None:
        """[known: owner] The instance dict `namespace` of `owner` was asked for `name` and lacks
        it.
        """

    def read_class(self, owner: Any, cls: type, name: str, raw: Any) -> None:
        """Lookup of `name` along the MRO of `cls` gave `raw` (no descriptor ran), or `ABSENT`.

        `owner` is the instance whose class is `cls`, or `cls` itself for an attribute of a class.
        Dunder lookups for operators are told too. Told once per class, name and state of the class.
        """

    def is_operation(self, function: Any) -> bool:
        """Whether `calculate` knows what `function` makes of a number that is told apart."""
        return False

    def has_sizes(self, value: Any) -> bool:
        """Whether C looks at sizes of `value` where it computes with it."""
        return False

    def is_keyed(self, container: Any, key: Any) -> bool:
        """[numbers: any] Whether what `container` has at `key` is to be found by a host call, done again on every call."""
        return False

    def has_other_keys(self, container: Any) -> bool:
        """[known: container] True: a dict whose keys are others from call to call."""
        return False

    def is_changing_key(self, key: Any) -> bool:
        """[numbers: any] Whether an attribute of the name `key` is to be found so."""
        return False

    def class_number(self, cls: type, name: str) -> int | float | None:
        """What the program shall see for the number `name` of a class: another object, or None."""
        return None

    def read_super(self, owner: Any, cls: type, after: type, name: str, raw: Any) -> None:
        """`super(after, owner).name`: lookup along the MRO of `cls`, behind `after`, gave `raw` or
        `ABSENT`.
        """

    def raised(self, error: BaseException) -> None:
        """`error` has been raised, here or by what was called, and is about to leave an
        instruction.
        """

    def read_member(self, owner: Any, name: str, value: Any) -> Any:
        """[known: owner] A C-level attribute: getset, member, `__slots__`, an attribute of a
        builtin type.
        """

    def read_size(self, owner: Any, name: str) -> Any:
        """[numbers: any] C has read attribute `name` of an object that is not known. What the
        program sees of it, or None.
        """

    def is_indexed_by_boxes(self, container: Any, key: Any) -> bool:
        """[numbers: any] Whether an index of `container` may hold numbers that nobody looks at."""
        return False

    def miss_member(self, owner: Any, name: str) -> None:
        """[known: owner] A C-level attribute raised AttributeError (an empty slot, an unknown
        name).
        """

    def read_global(self, namespace: dict, name: str, value: Any) -> Any:
        """`name` was found in `namespace`: the globals of a function, or its builtins."""

    def miss_global(self, namespace: dict, name: str) -> None:
        """`name` is not in `namespace` (globals: the builtins are asked next)."""

    def read_cell(self, cell: Any, value: Any) -> Any:
        """[known: cell] The content of a closure cell was read."""

    def read_item(self, container: Any, key: Any, value: Any) -> Any:
        """[known: container] `container[key]` of a list, tuple, dict (or subclass without
        `__getitem__`).
        """

    def miss_item(self, container: Any, key: Any) -> None:
        """[known: container] `key` is not in the dict, or the index is out of the sequence's
        range.
        """

    def read_length(self, container: Any, length: int) -> int | None:
        """[known: container] `len(container)` of a builtin container was taken, or its truth
        tested.
        """

    def read_contains(self, container: Any, value: Any, answer: bool) -> None:
        """[known: container] `value in container` of a builtin container."""

    def read_members(self, container: Any) -> list:
        """[known: container] The keys of a dict, or the elements of a set: the program asks whether a number
        is one of them."""
        return list(container)

    def is_one_of(self, value: Any, members: list) -> bool:
        """Performs `value in members`, of numbers of which some may be told apart."""
        return value in members

    def read_whole(self, container: Any) -> None:
        """[known: container] C looks at all of a builtin container, or iteration begins.

        Told for `for`, `**kwargs`, and for arguments of modelled builtins; of an exact list or tuple that is
        unpacked, cut or displayed with a star the items are read. For arguments of `c_call` the observer
        decides itself what C may look at.
        """

    def test_type(self, value: Any, classinfo: Any, answer: bool) -> None:
        """`isinstance(value, classinfo)` by C; a Python `__instancecheck__` is interpreted."""

    def test_subclass(self, cls: Any, classinfo: Any, answer: bool) -> None:
        """`issubclass(cls, classinfo)` by C."""

    def test_identity(self, left: Any, right: Any, answer: bool) -> None:
        """`left is right` (also `is None` in branches)."""

    def test_truth(self, value: Any) -> bool:
        """Performs the truth test of an object that no Python dunder answers, and returns it.

        Not told for None, True, False, int, float, str; builtin containers come as `read_length`.
        """
        return bool(value)

    def type_of(self, value: Any) -> None:
        """`type(value)` or `value.__class__` was asked."""

    # ------------------------------------------------------------------------------------ births
    def born(self, value: Any, kind: str) -> None:
        """The program made `value`; `kind` is of `BIRTHS`. It may be an object that existed
        before.
        """

    # ----------------------------------------------------------- writes: told before they happen
    def write_attribute(self, owner: Any, name: str, value: Any) -> None:
        """`owner.name = value` by C's generic setattr: instance dict, slot, getset, class or
        module.
        """

    def delete_attribute(self, owner: Any, name: str) -> None:
        """`del owner.name` by C's generic delattr."""

    def write_item(self, container: Any, key: Any, value: Any) -> None:
        """`container[key] = value` that no Python `__setitem__` answers: the write is C's."""

    def delete_item(self, container: Any, key: Any) -> None:
        """`del container[key]` that no Python `__delitem__` answers."""

    def write_cell(self, cell: Any, value: Any) -> None:
        """A closure cell gets `value`, or becomes empty when `value` is `ABSENT`."""

    def write_global(self, namespace: dict, name: str, value: Any) -> None:
        """A global gets `value`, or is deleted when `value` is `ABSENT`."""

    def mutate(self, container: Any, method: str, args: tuple, kwargs: dict) -> None:
        """A mutating method of a builtin container (list.append, ...): told, then done.

        It is not told to `c_call` again. `container += x` of a list, set, dict or deque comes as
        the dunder (`__iadd__`, `__ior__`).
        """

    def is_opaque_member(self, owner: Any, name: str, value: Any) -> bool:
        """True: the C-level attribute `name` of `owner` is read by `c_call(getattr, ...)`."""
        return False

    def is_opaque(self, container: Any, method: str, args: tuple, kwargs: dict) -> bool:
        """True: the mutating method is not told to `mutate` but made by `c_call`."""
        return False

    def has_answer(self) -> bool:
        """True: the present instruction made a host call, which has been answered."""
        return False

    def is_moving(self, container: Any) -> bool:
        """[known: container] True: its length changes from call to call, so it is iterated by
        operations of C."""
        return False

    def is_counted(self, number: Any) -> bool:
        """True: an int that is another one at each turn of a loop, or from call to call."""
        return False

    def is_key_by_identity(self, key: Any) -> bool:
        """True: dicts find `key`, which they are asked for now, by its identity, and run no Python."""
        return False

    # ----------------------------------------------------------------------------------- control
    def loop(self, frame: Any, is_again: bool) -> None:
        """A backward jump is taken in `frame`. `is_again`: the present instruction may be executed anew to take it."""

    def is_library(self, file: str) -> bool:
        """Whether frames of `file` are stepped over when the place of a GiveUp is named."""
        return False

    def gave_up(self, reason: str, detail: str, file: str, line: int) -> None:
        """The machine goes on without this observer; the last hook called. Place: the user's
        innermost line.
        """
