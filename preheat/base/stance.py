"""The stance: what calls of compiled functions do, in the whole process, until it is changed.

    preheat.stance("force_eager")                   from now on
    with preheat.stance("fail_on_recompile"): ...   in this block
    @preheat.stance("eager_on_recompile")           while this function runs

The signature and the meaning are those of `torch.compiler.set_stance`, which itself is about
torch.compile alone. As there, one stance holds for all threads. It is asked where no compiled code
fits a call; only `force_eager` concerns calls that some fits, and for these `follow` is told of
every change.
"""

import functools
import inspect
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from preheat.base.errors import UserError, nearest
from preheat.base.marks import DISABLE

STANCES: dict[str, str] = {
    "default": "what is not compiled yet is compiled",
    "force_eager": "every call runs as plain Python",
    "eager_on_recompile": "compiled code is used where it fits; other calls run as plain Python",
    "fail_on_recompile": "compiled code is used where it fits; other calls raise an error",
}
_NOT_THERE = {
    "eager_then_compile": "the first call runs as eager does and is compiled from what it did",
    "aot_eager_then_compile": "the first call runs as eager does and is compiled from what it did",
}


class Follower(Protocol):
    def stance_changed(self) -> None: ...


class Stance:
    """The present stance and who is told when it changes. The process has one, `present`."""

    def __init__(self) -> None:
        self.name = "default"
        self._followers: weakref.WeakSet[Follower] = weakref.WeakSet()

    def follow(self, follower: Follower) -> None:
        self._followers.add(follower)

    def set(self, name: str) -> None:
        self.name = name
        for follower in list(self._followers):
            follower.stance_changed()


present = Stance()


class stance:
    """Takes a stance: a function, a context manager or a decorator. See `STANCES`.

    Raises UserError for an unknown stance, and for `skip_guard_eval_unsafe` and `force_backend`,
    which torch.compile has: guards are never skipped, and a backend is chosen by `compile`.
    """

    def __init__(
        self, stance: str = "default", *, skip_guard_eval_unsafe: bool = False,
        force_backend: Any = None,
    ):
        self.stance = _checked(stance, skip_guard_eval_unsafe, force_backend)
        self.before = present.name
        present.set(self.stance)

    def __enter__(self) -> None:
        present.set(self.stance)

    def __exit__(self, *raised: object) -> None:
        present.set(self.before)

    def __call__(self, fn: Callable) -> Callable:
        present.set(self.before)  # of a decorator, only the calls of the function are meant
        is_later = inspect.isgeneratorfunction(fn) or inspect.iscoroutinefunction(fn)
        if isinstance(fn, type) or not callable(fn) or is_later or inspect.isasyncgenfunction(fn):
            raise UserError(
                f"stance({self.stance!r}) decorates functions, not {fn!r}: use it as a context "
                f"manager where the calls are")
        name = self.stance

        @functools.wraps(fn)
        def in_stance(*args: Any, **kwargs: Any) -> Any:
            with stance(name):
                return fn(*args, **kwargs)

        return in_stance


# A compiled function that takes a stance does so for real, on every call.
for _method in (stance.__init__, stance.__enter__, stance.__exit__, stance.__call__):
    setattr(_method, DISABLE, True)


def _checked(name: Any, skips_guards: bool, backend: Any) -> str:
    if isinstance(name, str) and name in _NOT_THERE:
        raise UserError(f"stance {name!r} is not needed: {_NOT_THERE[name]}")
    if not isinstance(name, str) or name not in STANCES:
        raise UserError(f"unknown stance {name!r}: {nearest(name, STANCES)}")
    if skips_guards:
        raise UserError("stance(skip_guard_eval_unsafe=True): guards are never skipped")
    if backend is not None:
        raise UserError("stance(force_backend=...): choose it with compile(backend=...)")
    return name
