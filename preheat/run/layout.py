"""Where CPython keeps what guards ask for: byte offsets, found by experiment on live objects.

    layout()           -> Layout(type=8, dict_version=24, cell=16, ...)
    layout(("cell",))  -> the same with `cell` None: the caller takes its Python path

No offset is written down: each probe makes objects whose content it knows, looks for that content
in their memory, and accepts an offset only if every example and every change agrees with it. A
probe that fails leaves None, and what needs it is checked in Python on every call. On Python 3.13
the dict version does not see stores to inline values, so that probe fails there, as it should.
"""

import _abc
import abc
import ctypes
import functools
import os
import struct
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from typing import Any

from preheat.base.dataclass import dataclass

WORD = 8
# All memory as one array, of which only what is read has to exist: a word costs half of what a
# ctypes object for it does.
_MEMORY = (ctypes.c_uint64 * ((1 << 60) - 1)).from_address(0)


@dataclass(frozen=True)
class InstanceLayout:
    """Where an instance without `__slots__` and without `__dictoffset__` keeps its attributes.

    dict         of the pointer to its `__dict__`: 0 or odd as long as nobody has asked for that
    dict_used    of a dict's count
    values       of the word that leads to its values as long as they lie in no dict: a word that
                 is not 0 and has `values_bit` as its lowest bit
    values_used  from that word's value to the byte that counts them
    """

    dict: int
    dict_used: int
    values: int
    values_bit: int
    values_used: int


@dataclass(frozen=True)
class Layout:
    """Offsets in bytes from the start of an object; None where the experiment failed.

    type            of the type pointer, in every object
    size            of the item count, in lists and tuples
    list_items      of the pointer to a list's items;   tuple_items   of a tuple's first item
    dict_version    of a number that every change of a dict renews, and that no two dicts share
    dict_used, dict_keys, dict_values   of a dict's count, the pointer to its table of keys, and the
                    pointer that is null unless the values lie elsewhere
    dict_items      from where that pointer leads to the first of those values, in the order of keys
    managed_dict    of the pointer to an instance's `__dict__` if its type has no `__dictoffset__`
    instance        where instances of such types keep their attributes
    type_version    of a 32-bit number that every change of a type or its bases renews or zeroes
    cell            of a cell's content
    float_value     of a float's 8 bytes
    code, defaults, kwdefaults   of a function's
    set_used, set_mask, set_table   of a set's count, its table's last index, its table of
                    (element, hash)
    member          of the `PyMemberDef` pointer in a member descriptor (slots, C members)
    weak_reference  of the pointer to what a weak reference refers to
    abc_token       absolute address of the number that every `ABCMeta.register` raises
    """

    type: int | None = None
    size: int | None = None
    list_items: int | None = None
    tuple_items: int | None = None
    dict_version: int | None = None
    dict_used: int | None = None
    dict_keys: int | None = None
    dict_values: int | None = None
    dict_items: int | None = None
    managed_dict: int | None = None
    instance: InstanceLayout | None = None
    type_version: int | None = None
    cell: int | None = None
    float_value: int | None = None
    code: int | None = None
    defaults: int | None = None
    kwdefaults: int | None = None
    set_used: int | None = None
    set_mask: int | None = None
    set_table: int | None = None
    member: int | None = None
    weak_reference: int | None = None
    abc_token: int | None = None


def layout(without: tuple[str, ...] = ()) -> Layout:
    """The layout of the running Python; fields in `without` are None, as if their probe failed."""
    return replace(_probed(), **dict.fromkeys(without)) if without else _probed()


@functools.cache
def _probed() -> Layout:
    return Layout(**{field.name: _PROBES[field.name]() for field in fields(Layout)})


def word(address: int) -> int:
    """The 8 bytes at `address` as an unsigned number."""
    if address % WORD:
        return ctypes.c_uint64.from_address(address).value
    return _MEMORY[address // WORD]


def words_at(address: int, count: int) -> tuple[int, ...]:
    """The `count` words from `address` on."""
    return struct.unpack(f"<{count}Q", ctypes.string_at(address, WORD * count))


def read(address: int, size: int) -> bytes | None:
    """`size` bytes at `address`, or None where there is no memory: for what may be no address.

    The kernel reads, on behalf of a write to a pipe, and reports a bad address as an error.
    """
    outlet, inlet = os.pipe()
    try:
        return os.read(outlet, size) if _write()(inlet, address, size) == size else None
    finally:
        os.close(outlet)
        os.close(inlet)


@functools.lru_cache
def _write() -> Callable[[int, int, int], int]:
    """The C library's `write(file, address, size)`."""
    prototype = ctypes.CFUNCTYPE(ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)
    return prototype(("write", ctypes.CDLL(None)))


def is_bare(instance: int, where: InstanceLayout) -> bool:
    """Whether the instance at this address has no attribute of its own: a `bare` row in Python."""
    space = word(instance + where.dict)
    if space and space % 2 == 0 and word(space + where.dict_used):
        return False
    values = word(instance + where.values)
    if values == 0 or values % 2 != where.values_bit:
        return True
    return ctypes.c_uint8.from_address(values + where.values_used).value == 0


def force_type_version(cls: type) -> None:
    """Looks up a name that no class has; to cache that, CPython gives `cls` a version."""
    try:
        type.__getattribute__(cls, "<preheat>")
    except AttributeError:
        return


# ---------------------------------------------------------------------------- helpers of probes
def _only(offsets: Iterable[Sequence[int]]) -> int | None:
    """The first offset that all examples have in common."""
    common = functools.reduce(lambda a, b: [x for x in a if x in b], offsets)
    return common[0] if common else None


def _places(value: object, content: int, words: int) -> list[int]:
    """The offsets in the first `words` words of `value` at which the word `content` stands."""
    return [WORD * i for i, found in enumerate(_words(value, words)) if found == content]


def _words(value: object, words: int) -> tuple[int, ...]:
    """The first `words` words of `value`."""
    return words_at(id(value), words)


def _may_be_address(value: int) -> bool:
    """Whether it is worth asking the system: counts and hashes mostly are no addresses."""
    return value % WORD == 0 and 1 << 16 <= value < 1 << 57


class _Plain:
    """A class with a `__dict__` and nothing else."""


def _fresh_class() -> type:
    """Another such class: CPython lays out instances by what earlier ones of their class held."""
    return type("_Fresh", (), {})


def _words_of(kind: type) -> int:
    return kind.__basicsize__ // WORD


# ---------------------------------------------------------------------------- probes
def _type() -> int | None:
    return _only(_places(v, id(type(v)), 2) for v in (1.5, "text", [], {}, _Plain(), _Plain, (1,)))


def _size() -> int | None:
    examples = [([None] * n, n) for n in (3, 7, 1001)] + [((None,) * n, n) for n in (5, 11)]
    return _only(_places(v, n, 3) for v, n in examples)


def _list_items() -> int | None:
    def holds(value: list, offset: int) -> bool:
        items = read(word(id(value) + offset), WORD * len(value))
        return items == b"".join(id(v).to_bytes(WORD, "little") for v in value)

    examples = ([_Plain(), 7, "a"], [_Plain() for _ in range(50)])
    return _only(
        [o for o in (WORD * i for i in range(3, _words_of(list))) if holds(v, o)] for v in examples
    )


def _tuple_items() -> int | None:
    examples = ((_Plain(), _Plain()), tuple(_Plain() for _ in range(9)))
    starts = [
        [o for o in _places(v, id(v[0]), 5) if word(id(v) + o + WORD) == id(v[1])] for v in examples
    ]
    return _only(starts)


def _dict_version() -> int | None:
    return _only(_renewed(make) for make in _dict_histories())


def _renewed(history: Callable) -> list[int]:
    """Offsets at which the word is new after every change of a history, and kept in between."""
    target, changes = history()
    count = _words_of(dict)
    seen = [{w} for w in _words(target, count)]
    alive = set(range(2, count))
    for change in changes:
        before = _words(target, count)
        target.get("a"), len(target), list(target)
        alive &= {i for i, w in enumerate(_words(target, count)) if w == before[i]}
        change()
        after = _words(target, count)
        alive &= {i for i in alive if after[i] not in seen[i]}
        for i in alive:
            seen[i].add(after[i])
    return [WORD * i for i in sorted(alive)]


def _dict_histories() -> list[Callable]:
    def plain():
        d: dict = {"a": 1}
        return d, [
            lambda: d.__setitem__("a", _Plain()), lambda: d.__setitem__("b", 1),
            lambda: d.update(c=2), lambda: d.pop("b"), lambda: d.setdefault("e", 1),
            lambda: d.__ior__({"a": 5}), d.popitem, lambda: d.__delitem__("a"), d.clear,
            lambda: d.update(dict.fromkeys("abcdefghijk", 0)),
        ]

    def instance(names: int):
        # stores through attribute access, also by bytecode that CPython has specialised by then
        def build():
            value = _fresh_class()()
            for i in range(names):
                setattr(value, f"n{i}", i)
            space = value.__dict__

            def store() -> None:
                value.n0 = _Plain()

            def add() -> None:
                value.counter = _Plain()

            def delete() -> None:
                del value.counter

            by_slot = [lambda: object.__setattr__(value, "n0", _Plain())] * 3
            return space, [store] * 60 + [add, add, delete] + by_slot + [store]

        return build

    return [plain, instance(2), instance(40)]


# The table of a dict with str keys: a header whose second word starts with the bytes log2(size),
# log2(bytes of the index), kind, and whose fourth is the number of entries; then the index; then
# the entries (key, value).
KEYS_HEADER = 4 * WORD
KEYS_SHAPE, KEYS_SHAPE_MASK = WORD, 0xFFFFFF
KEYS_COUNT = 3 * WORD


def entries_offset(keys: int) -> int:
    """Where the entries of the table of keys at address `keys` start, counted from there."""
    return KEYS_HEADER + (1 << ctypes.c_uint8.from_address(keys + KEYS_SHAPE + 1).value)


def _text_dicts() -> list[dict]:
    return [{f"key{i}": _Plain() for i in range(n)} for n in (1, 5, 9, 30, 200)]


def _dict_used() -> int | None:
    return _only(_places(d, len(d), _words_of(dict)) for d in _text_dicts())


def _dict_keys() -> int | None:
    """The pointer to a table that is laid out as said above, in dicts of many sizes."""

    def holds(value: dict, offset: int) -> bool:
        keys = word(id(value) + offset)
        header = read(keys, KEYS_HEADER) if _may_be_address(keys) else None
        if header is None or int.from_bytes(header[KEYS_COUNT:], "little") != len(value):
            return False
        entries = read(
            keys + KEYS_HEADER + (1 << min(header[KEYS_SHAPE + 1], 16)), 2 * WORD * len(value)
        )
        return entries == b"".join(
            id(part).to_bytes(WORD, "little") for pair in value.items() for part in pair
        )

    def kind(value: dict, offset: int) -> int:
        return ctypes.c_uint8.from_address(word(id(value) + offset) + KEYS_SHAPE + 2).value

    found = _only(
        [o for o in range(2 * WORD, _words_of(dict) * WORD, WORD) if holds(d, o)]
        for d in _text_dicts()
    )
    if found is None or kind({"a": 1}, found) == kind({1: 1}, found):
        return None
    return found


def _dict_values() -> int | None:
    """Null in a dict of its own, a pointer in the dict of an instance that shares its keys."""
    shared = _fresh_class()()
    shared.first, shared.second = _Plain(), _Plain()
    null = _only(_places(d, 0, _words_of(dict)) for d in _text_dicts())
    offsets = [o for o in (null,) if o is not None and word(id(shared.__dict__) + o) != 0]
    return offsets[0] if offsets else None


def _dict_items() -> int | None:
    """Values of instances that share their keys, one after the other; a deleted one is null."""
    values, keys = _dict_values(), _dict_keys()
    if values is None or keys is None:
        return None

    def example(names: str, gone: str) -> list[int]:
        value = _fresh_class()()
        for name in names:
            setattr(value, name, _Plain())
        space = value.__dict__
        for name in gone:
            delattr(value, name)
        table = word(id(space) + keys)
        there = words_at(table + entries_offset(table), 2 * len(names))[::2]
        content = tuple([id(space[name]) if name in space else 0 for name in names])
        start = word(id(space) + values)
        if start == 0 or there != tuple([id(sys.intern(name)) for name in names]):
            return []
        return [o for o in range(0, 3 * WORD, WORD) if words_at(start + o, len(names)) == content]

    return _only(example(*case) for case in (("abc", ""), ("dcbaefg", "cf"), ("qrst", "q")))


def _managed_dict() -> int | None:
    def example(names: int) -> list[int]:
        value = _fresh_class()()
        for i in range(names):
            setattr(value, f"m{i}", i)
        space = id(value.__dict__)
        return [-WORD * i for i in range(1, 5) if word(id(value) - WORD * i) == space]

    if _Plain.__dictoffset__ > 0:
        return None
    return _only(example(n) for n in (0, 1, 40))


def _instance() -> InstanceLayout | None:
    """Values that stand one after the other where a word in front of the instance leads, and the
    byte before them that counts them: believed if it tells whether there are any, in all cases."""
    space, used = _managed_dict(), _dict_used()
    if space is None or used is None:
        return None
    places = [_values_places(*names) for names in (("a", "b"), ("a", "b", "c", "d", "e"), ("z",))]
    found = [
        InstanceLayout(space, used, *place)
        for place in places[0] if all(place in others for others in places)
    ]
    return found[0] if len(found) == 1 and _tells_bare(found[0]) else None


def _values_places(*names: str) -> list[tuple[int, int, int]]:
    """(offset of the word, its lowest bit, distance of the count) that an instance agrees with."""
    value = _fresh_class()()
    for name in names:
        setattr(value, name, _Plain())
    content = b"".join(id(getattr(value, name)).to_bytes(WORD, "little") for name in names)
    places = []
    for offset in range(-4 * WORD, 0, WORD):
        found = word(id(value) + offset)
        start = found + found % 2
        memory = read(start - WORD, WORD + len(content)) if _may_be_address(start) else None
        if memory is not None and memory[WORD:] == content:
            for before in range(1, WORD + 1):
                if memory[WORD - before] == len(names):
                    places.append((offset, found % 2, found % 2 - before))
    return places


def _tells_bare(where: InstanceLayout) -> bool:
    """Whether `is_bare` is right about instances with and without a dict, and after deletions."""

    def is_right(names: int, has_dict: bool) -> bool:
        value = _fresh_class()()
        changes = [(setattr, f"w{i}", i) for i in range(names)]
        changes += [(delattr, f"w{i}") for i in range(names)] + [(setattr, "w0", 1)]
        answers, wanted, count = [], [], 0
        for change, *operands in changes:
            if has_dict:
                vars(value)
            answers.append(is_bare(id(value), where))
            wanted.append(count == 0)
            change(value, *operands)
            count += 1 if change is setattr else -1
        return answers == wanted

    def is_right_about(content: dict) -> bool:
        value = _fresh_class()()
        value.w0 = 1
        value.__dict__ = content
        return is_bare(id(value), where) is (not content)

    return all(
        is_right(names, has_dict) for names in (1, 3, 50) for has_dict in (False, True)
    ) and all(map(is_right_about, ({}, {"w0": 1})))


def _type_version() -> int | None:
    """The 32-bit word that is new after each change of a class or its base and the next lookup."""
    base = type("base", (), {"__slots__": ()})
    derived = type("derived", (base,), {"__slots__": ()})
    other = type("other", (), {"__slots__": ()})
    words = _words_of(type)

    def change_bases() -> None:
        derived.__bases__ = (other, base)

    changes = [
        lambda: setattr(base, "a", 1), lambda: setattr(base, "a", 2), lambda: delattr(base, "a"),
        change_bases, lambda: setattr(other, "b", 1), lambda: setattr(derived, "c", 1),
    ]
    force_type_version(derived)
    alive = {o for o in range(WORD * 3, WORD * words, 4) if _half(derived, o)}
    seen = {o: {_half(derived, o)} for o in alive}
    for change in changes:
        change()
        stale = {o: _half(derived, o) for o in alive}
        force_type_version(derived)
        now = {o: _half(derived, o) for o in alive}
        alive = {o for o in alive if now[o] not in seen[o] and stale[o] not in seen[o] and now[o]}
        for o in alive:
            seen[o].add(now[o])
    return min(alive, default=None)


def _half(value: object, offset: int) -> int:
    return ctypes.c_uint32.from_address(id(value) + offset).value


def _cell() -> int | None:
    contents = (_Plain(), _Plain(), 12345678)
    return _only(_places(cell, id(v), 4) for v in contents for cell in (types.CellType(v),))


def _weak_reference() -> int | None:
    """A pointer to the object while it lives, to None afterwards."""

    def example() -> list[int]:
        value = _Plain()
        reference = weakref.ref(value)
        places = _places(reference, id(value), _words_of(weakref.ReferenceType))
        del value
        return [o for o in places if word(id(reference) + o) == id(None)]

    return _only((example(), example()))


def _float_value() -> int | None:
    bits = {1.5: 0x3FF8000000000000, -2.25: 0xC002000000000000}
    return _only(_places(v, b, 3) for v, b in bits.items())


def _function_field(name: str, make: Callable[[], object]) -> Callable[[], int | None]:
    """A probe of the offset at which a function keeps attribute `name`, also after it was set."""

    def probe() -> int | None:
        def example() -> list[int]:
            def function(a=1, *, b=2):
                return a, b

            def same(a=3, *, b=4):
                return b, a, b

            places = []
            for value in (getattr(function, name), getattr(same, name), make()):
                setattr(function, name, value)
                places.append(_places(function, id(value), _words_of(types.FunctionType)))
            return [o for o in places[0] if all(o in p for p in places)]

        return _only((example(), example()))

    return probe


def _set_field(read: Callable[[set], int], lowest: int) -> Callable[[], int | None]:
    """A probe of the offset of a number that `read` computes for a set."""
    examples = [set(range(n)) for n in (3, 5, 20, 100)]
    return lambda: _only([o for o in _places(v, read(v), 8) if o >= lowest] for v in examples)


def _set_mask_of(value: set) -> int:
    """The last index of the table: 16 bytes an entry, up to 8 entries inside the object."""
    outside = value.__sizeof__() - set.__basicsize__
    return (outside // 16 or 8) - 1


def _set_table() -> int | None:
    def holds(value: set, offset: int, entries: int) -> bool:
        address = word(id(value) + offset)
        table = read(address, 16 * entries) if _may_be_address(address) else None
        if table is None:
            return False
        found = {int.from_bytes(table[16 * i : 16 * i + WORD], "little") for i in range(entries)}
        return {id(v) for v in value} <= found

    examples = [{_Plain() for _ in range(n)} for n in (1, 3, 30)]
    offsets = [WORD * i for i in range(2, _words_of(set))]
    return _only([o for o in offsets if holds(v, o, _set_mask_of(v) + 1)] for v in examples)


class _Slots:
    """A class whose attributes are C members."""

    __slots__ = ("first", "second", "third")


def _member() -> int | None:
    """Where a member descriptor points to its definition: (name, type, offset, ...)."""
    value = _Slots()
    value.first, value.second, value.third = _Plain(), _Plain(), _Plain()

    def example(name: str) -> list[int]:
        descriptor = _Slots.__dict__[name]
        place = _places(value, id(getattr(value, name)), _words_of(_Slots))
        offsets = []
        for offset in (WORD * i for i in range(2, _words_of(type(descriptor)))):
            definition = word(id(descriptor) + offset)
            if definition in (0, id(_Slots)) or not _is_definition(definition, name):
                continue
            if word(definition + 2 * WORD) in place:
                offsets.append(offset)
        return offsets

    return _only(example(n) for n in _Slots.__slots__)


def _is_definition(address: int, name: str) -> bool:
    """Whether a `PyMemberDef` of this name is at `address`."""
    start = read(address, WORD)
    text = read(int.from_bytes(start, "little"), len(name) + 1) if start else None
    return text == name.encode() + b"\0"


def _abc_token() -> int | None:
    """The counter lies in the state of the C module `_abc`, next to a type pointer."""
    state_of = ctypes.pythonapi.PyModule_GetState
    state_of.restype, state_of.argtypes = ctypes.c_void_p, [ctypes.py_object]
    state = state_of(_abc)
    if not state:
        return None
    places = [state + WORD * i for i in range(4) if word(state + WORD * i) == abc.get_cache_token()]
    for _ in range(3):
        abc.ABCMeta("_Probe", (), {}).register(_Plain)
        places = [p for p in places if word(p) == abc.get_cache_token()]
    return places[0] if len(places) == 1 else None


_PROBES: dict[str, Callable[[], Any]] = {
    "type": _type, "size": _size, "list_items": _list_items, "tuple_items": _tuple_items,
    "dict_version": _dict_version, "dict_used": _dict_used, "dict_keys": _dict_keys,
    "dict_values": _dict_values, "dict_items": _dict_items, "managed_dict": _managed_dict,
    "instance": _instance, "type_version": _type_version,
    "cell": _cell, "float_value": _float_value,
    "code": _function_field("__code__", lambda: _only.__code__.replace(co_freevars=())),
    "defaults": _function_field("__defaults__", lambda: (5,)),
    "kwdefaults": _function_field("__kwdefaults__", lambda: {"b": 6}),
    "set_used": _set_field(len, 24), "set_mask": _set_field(_set_mask_of, 24),
    "set_table": _set_table, "member": _member, "weak_reference": _weak_reference,
    "abc_token": _abc_token,
}
