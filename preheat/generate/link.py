"""Object file to flat code: one block of bytes that runs wherever it is mapped.

    link(object_bytes) -> Linked(code=b"\\x55...", entries=(("softmax_0", 0), ("gelu_1", 512)))

Lays the code and constant sections of a relocatable ELF object one after the other and resolves
every relocation inside the block, so that loading is one `mmap`. Requires: page-aligned mapping
(AArch64 addresses constants by page). Guarantees: no imports, no writable data, no absolute
address; an object that needs one is an InternalError that names the symbol, since a kernel that
calls `fmodf` or `__truncsfbf2` is a fault of the generator.

Source: System V ABI, AMD64 supplement 1.0 (relocations, 4.4.1); ELF for the Arm 64-bit
Architecture, 2024Q3 (relocations, 5.7).
"""

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from preheat.base.errors import InternalError


class Linked(NamedTuple):
    """A flat block and the offset of every global function in it, by name."""

    code: bytes
    entries: tuple[tuple[str, int], ...]


class Section(NamedTuple):
    name: str
    type: int
    flags: int
    data: bytes
    size: int
    link: int
    info: int
    alignment: int


class Symbol(NamedTuple):
    name: str
    info: int
    section: int
    value: int


class Relocation(NamedTuple):
    offset: int
    symbol: int
    type: int
    addend: int


PROGBITS, SYMTAB, RELA = 1, 2, 4
WRITE, ALLOC = 1, 2
GLOBAL_FUNC, GLOBAL, SECTION_SYMBOL, FUNC = 0x12, 1, 3, 2
X86_64, AARCH64 = 62, 183
MAX_ALIGNMENT = 4096


def link(object_bytes: bytes) -> Linked:
    """`object_bytes` (a relocatable ELF file) as flat code. Raises InternalError if it cannot."""
    machine, sections = _sections(object_bytes)
    block, starts = _layout(sections)
    symbols, names = _symbols(sections)
    apply = _RELOCATE[machine]
    for section in sections:
        if section.type != RELA or section.info not in starts:
            continue
        for relocation in _relocations(section):
            symbol = symbols[relocation.symbol]
            if symbol.section not in starts:
                raise InternalError(_unresolved(symbol, names[symbol.section:symbol.section + 1]))
            place = starts[section.info] + relocation.offset
            target = starts[symbol.section] + symbol.value + relocation.addend
            apply(block, relocation.type, place, target, symbol.name)
    entries = tuple(
        (s.name, starts[s.section] + s.value)
        for s in symbols if s.info == GLOBAL_FUNC and s.section in starts
    )
    return Linked(bytes(block), entries)


def _unresolved(symbol: Symbol, section: list[str]) -> str:
    if symbol.section:
        return f"code refers to data in section {section}, which a flat block cannot hold"
    return f"code needs the external symbol {symbol.name!r}, and a flat block imports nothing"


def _sections(data: bytes) -> tuple[int, list[Section]]:
    """The machine number and all sections of a little-endian ELF64 relocatable file."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise InternalError("not a little-endian 64-bit ELF object")
    kind, machine = struct.unpack_from("<HH", data, 16)
    if kind != 1 or machine not in _RELOCATE:
        raise InternalError(f"ELF type {kind} for machine {machine} cannot be linked")
    table, = struct.unpack_from("<Q", data, 40)
    size, count, names = struct.unpack_from("<HHH", data, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, table + i * size) for i in range(count)]
    strings = headers[names][4]
    sections = []
    for name, type, flags, _, offset, length, link_, info, alignment, _ in headers:
        body = data[offset:offset + length] if type != 8 else b""  # 8: zero-initialised, no bytes
        title = _string(data, strings + name)
        sections.append(Section(title, type, flags, body, length, link_, info, alignment))
    return machine, sections


def _layout(sections: list[Section]) -> tuple[bytearray, dict[int, int]]:
    """All code and constants in one block, and where each kept section starts."""
    block, starts = bytearray(), {}
    for number, section in enumerate(sections):
        # unwind tables are no use to code that never throws
        if not section.flags & ALLOC or not section.size or section.name.startswith(".eh_frame"):
            continue
        if section.flags & WRITE or section.type != PROGBITS:
            raise InternalError(f"{section.size} bytes of writable data in section {section.name}")
        if section.alignment > MAX_ALIGNMENT:
            raise InternalError(f"section {section.name} asks for alignment {section.alignment}")
        block.extend(b"\0" * (-len(block) % max(section.alignment, 16)))
        starts[number] = len(block)
        block.extend(section.data)
    return block, starts


def _symbols(sections: list[Section]) -> tuple[list[Symbol], list[str]]:
    names = [section.name for section in sections]
    table = next((s for s in sections if s.type == SYMTAB), None)
    if table is None:
        raise InternalError("object without a symbol table")
    strings = sections[table.link].data
    symbols = []
    for offset in range(0, table.size, 24):
        name, info, _, section, value, _ = struct.unpack_from("<IBBHQQ", table.data, offset)
        symbols.append(Symbol(_string(strings, name), info, section, value))
    return symbols, names


def _relocations(section: Section) -> Iterator[Relocation]:
    for offset in range(0, section.size, 24):
        place, info, addend = struct.unpack_from("<QQq", section.data, offset)
        yield Relocation(place, info >> 32, info & 0xFFFFFFFF, addend)


def _string(data: bytes, offset: int) -> str:
    return data[offset:data.index(b"\0", offset)].decode()


def _relocate_x86_64(block: bytearray, type: int, place: int, target: int, name: str) -> None:
    if type in (2, 4):  # PC32, PLT32
        struct.pack_into("<i", block, place, target - place)
    elif type == 24:  # PC64
        struct.pack_into("<q", block, place, target - place)
    elif type in (41, 42) and block[place - 2] == 0x8B:
        # GOTPCRELX: a load of the address from a table becomes the address itself (mov -> lea)
        block[place - 2] = 0x8D
        struct.pack_into("<i", block, place, target - place)
    else:
        raise InternalError(f"x86-64 relocation {type} against {name!r} needs an absolute address")


def _relocate_aarch64(block: bytearray, type: int, place: int, target: int, name: str) -> None:
    if type in (260, 261):  # PREL64, PREL32
        struct.pack_into("<q" if type == 260 else "<i", block, place, target - place)
        return
    word, = struct.unpack_from("<I", block, place)
    if type == 275:  # ADR_PREL_PG_HI21: pages from here
        pages = (target >> 12) - (place >> 12)
        word |= (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5
    elif type == 274:  # ADR_PREL_LO21
        word |= (target - place & 3) << 29 | (target - place >> 2 & 0x7FFFF) << 5
    elif type in _LOW12_SHIFT:  # the offset within the page, scaled by the access
        word |= ((target & 0xFFF) >> _LOW12_SHIFT[type]) << 10
    elif type in (282, 283):  # JUMP26, CALL26
        word |= target - place >> 2 & 0x3FFFFFF
    elif type in (273, 280):  # LD_PREL_LO19, CONDBR19
        word |= (target - place >> 2 & 0x7FFFF) << 5
    else:
        raise InternalError(f"AArch64 relocation {type} against {name!r} needs an absolute address")
    struct.pack_into("<I", block, place, word)


# ADD_ABS_LO12_NC and LDST{8,16,32,64,128}_ABS_LO12_NC
_LOW12_SHIFT = {277: 0, 278: 0, 284: 1, 285: 2, 286: 3, 299: 4}
_RELOCATE: dict[int, Callable[[bytearray, int, int, int, str], None]] = {
    X86_64: _relocate_x86_64, AARCH64: _relocate_aarch64,
}
