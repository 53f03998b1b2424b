"""Models of the copy protocol: `copy.copy`, `copy.deepcopy` and pickle ask `__reduce_ex__` of C.

    copy.copy(config)  ->  config.__reduce_ex__(4)  ->  Frame(polyfills.reduce_by_state)

What C reads there (the instance dict, `__getstate__`, slots, items) is read by the program's own
bytecode instead, so it is seen. Classes with a `__reduce__` or `__getnewargs__` of their own, and
those over other classes of C, are left to C. Source: CPython `Objects/typeobject.c`
`reduce_newobj`, `object_getstate_default`.
"""

import copyreg
from typing import Any

from preheat.base.names import instance_dict, is_heap_type, mro_of
from preheat.capture import polyfills
from preheat.capture.calls import c_call, invoke
from preheat.capture.models import method
from preheat.capture.observer import ABSENT

OWN_WAYS = ("__getnewargs_ex__", "__getnewargs__")
BASES = (object, dict, list)
OBJECT_REDUCE, OBJECT_REDUCE_EX = object.__reduce__, object.__reduce_ex__
OBJECT_GETSTATE = getattr(object, "__getstate__", None)


@method("__reduce_ex__", object)
def model_reduce_ex(m, function: Any, owner: Any, args: tuple | list, kwargs: dict) -> Any:
    cls = type(owner)
    if kwargs or len(args) != 1 or type(args[0]) is not int or args[0] < 2 or not has_plain(m, owner):
        return c_call(m, function, args, kwargs)
    has_state = m.lookup(owner, cls, "__getstate__") is not OBJECT_GETSTATE
    base = next(b for b in mro_of(cls) if not is_heap_type(b))
    names = tuple(copyreg._slotnames(cls))
    about = names, has_state, instance_dict(owner) is not None, base is list, base is dict
    return invoke(m, polyfills.reduce_by_state, (owner, *about))


def has_plain(m, owner: Any) -> bool:
    """Whether `object` itself reduces instances of this class of Python's."""
    cls = type(owner)
    if not is_heap_type(cls) or OBJECT_GETSTATE is None:
        return False
    base = next(b for b in mro_of(cls) if not is_heap_type(b))
    return (
        base in BASES
        and m.lookup(owner, cls, "__reduce__") is OBJECT_REDUCE
        and m.lookup(owner, cls, "__reduce_ex__") is OBJECT_REDUCE_EX
        and all(m.lookup(owner, cls, name) is ABSENT for name in OWN_WAYS)
        and not any(is_made_by_c(b) for b in mro_of(cls))
    )


def is_made_by_c(cls: type) -> bool:
    """A class of C that looks like one of Python's: it has state that no dict shows."""
    made = type.__dict__["__dict__"].__get__(cls).get("__new__")
    return is_heap_type(cls) and type(made) is type(object.__new__)
