"""Class lookups: the raw attribute that a search along an MRO finds, cached by version tag.

    View(Linear).lookup("forward")    ->  the function, no descriptor run
    View(Linear).lookup("absent")     ->  ABSENT

CPython stamps each class with a version tag that changes whenever the class, a base or the MRO
changes; a view is good while the tag is the one it was made under. The tag's offset in
`PyTypeObject` is found by a probe when this module loads; where the probe fails, every lookup walks
the MRO. Guarantees the same answer as `_PyType_Lookup`, whatever code (native or interpreted)
changed the class in between. Source: CPython `Objects/typeobject.c`, `assign_version_tag` and
`type_modified_unlocked`.
"""

import ctypes
import types
from typing import Any

from preheat.base.names import is_heap_type, raw_attribute
from preheat.capture.observer import ABSENT

UNSEEN: Any = object()
WORD = ctypes.c_uint32
SLOT_WRAPPER = types.WrapperDescriptorType
OF_OBJECT = {
    name: object.__dict__[name] for name in ("__getattribute__", "__setattr__", "__delattr__")
}


def stamp(cls: type) -> None:
    """Makes CPython give `cls` a version tag, by a lookup that runs no Python."""
    type.__getattribute__(cls, "__reduce_ex__")


def probe() -> int:
    """Offset of the version tag in a type object, or -1."""
    candidates = None
    for _ in range(3):
        cls = type("Probe", (), {})
        words = [WORD.from_address(id(cls) + at) for at in range(0, type.__basicsize__, 4)]
        stamp(cls)
        first = [word.value for word in words]
        cls.attribute = 1
        changed = [word.value for word in words]
        stamp(cls)
        second = [word.value for word in words]
        found = {
            4 * at
            for at, (old, between, new) in enumerate(zip(first, changed, second))
            if old and new and old != new and between in (0, new)
        }
        candidates = found if candidates is None else candidates & found
    return candidates.pop() if candidates is not None and len(candidates) == 1 else -1


TAG_OFFSET = probe()


def _wrapped(wrapper: Any) -> int | None:
    """Address of the C function that a slot wrapper calls: the last word of the wrapper."""
    return ctypes.c_void_p.from_address(id(wrapper) + SLOT_WRAPPER.__basicsize__ - 8).value


def _probe_slots() -> bool:
    """Whether `_wrapped` tells slots apart: some that are known to be alike, and one that is not."""
    alike = [_wrapped(cls.__dict__["__getattribute__"]) for cls in (object, dict, BaseException)]
    return len({*alike}) == 1 and _wrapped(type.__dict__["__getattribute__"]) not in (*alike, None)


HAS_SLOTS = _probe_slots()


def common(hook: Any) -> Any:
    """The slot wrapper of `object` that calls the same C function as `hook`, else `hook`: classes of
    C have wrappers of their own of what they share with `object`."""
    if type(hook) is not SLOT_WRAPPER or not HAS_SLOTS:
        return hook
    model = OF_OBJECT.get(hook.__name__)
    return model if model is not None and _wrapped(hook) == _wrapped(model) else hook


class View:
    """What is known of one class under one version.

    raws           raw attributes by name, ABSENT for those it lacks
    by_c           names that `object.__getattribute__` reads from its instances without Python
    getattribute   what searches its instances: that of `object` wherever the class has the same in C
    is_heap        only such a class may have Python dunders
    """

    __slots__ = ("cls", "tag", "version", "raws", "by_c", "getattribute", "is_heap")

    def __init__(self, cls: type):
        self.cls = cls
        self.tag = WORD.from_address(id(cls) + TAG_OFFSET) if TAG_OFFSET > 0 else WORD(0)
        stamp(cls)
        self.version = self.tag.value or -1  # no tag: never equal, so every lookup makes a new view
        self.raws: dict[str, Any] = {}
        self.by_c: set[str] = set()
        self.is_heap = is_heap_type(cls)
        self.getattribute = common(self.lookup("__getattribute__"))

    def lookup(self, name: str) -> Any:
        """The raw attribute, or ABSENT."""
        raw = self.raws.get(name, UNSEEN)
        if raw is UNSEEN:
            raw = self.raws[name] = raw_attribute(self.cls, name, ABSENT)
        return raw
