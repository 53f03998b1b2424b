"""The notation of the runtime's text: LLVM IR with the fields of records by name.

    %slow = FIELD ptr program.slow, %program       load a word of a record
    STORE i64 0, frame.flag, %frame                store one
    {size.frame} {reason.guard} {gemm.m}           size of a record, number of a row, a place
    #{hot} #{rare} #{inline}                       how a function is compiled (runtime_driver)

Before: text in this notation. After: plain LLVM IR, in which each field access is a getelementptr
and a load or store. Layouts come from `ir/records.py`, so no number of a layout stands in the text.
"""

import itertools
import re

from preheat.ir.records import (
    ACCESS, CALL_KINDS, CALLS, LAUNCH_ALIGN_BYTES, NODES, NUMBER_SLOT, ORIGINS, REASONS, RECORDS,
    SHAPES, SHIM_WORD_LIMIT, SHIM_WORDS, call_offset, offset, size,
)
from preheat.ir.rows import VERDICT

# A bytes object begins with reference count, type, length and hash; run/device.py verifies it.
BYTES_PAYLOAD = 32

_FIELD = re.compile(r"^( *)(%[\w.]+) = FIELD (\w+) (\w+)\.(\w+), (%[\w.]+)", re.MULTILINE)
_STORE = re.compile(r"^( *)STORE (\w+ \S+), (\w+)\.(\w+), (%[\w.]+)", re.MULTILINE)
_NUMBER = re.compile(r"\{(\w+)(?:\.(\w+))?\}")
_TABLES = {
    "reason": REASONS, "kind": CALL_KINDS, "origin": ORIGINS, "access": ACCESS, "shape": SHAPES,
    "word": SHIM_WORDS, "node": NODES,
}
_NUMBERS = {
    "payload": BYTES_PAYLOAD, "limit": SHIM_WORD_LIMIT, "align": LAUNCH_ALIGN_BYTES,
    "number_slot": NUMBER_SLOT, "verdict": VERDICT,
    "hot": 0, "rare": 1, "inline": 2,
}


def each_word(name: str, first: str, then: str, body: str) -> str:
    """A loop over the words that the check has left for `%program`, from block `first` on, to block `then`:
    `body` is done with the index `%{name}.k`, the record `%{name}.record` and the word's `%{name}.cell`.

    Requires %words and %word.count, fields of the program.
    """
    return f"""
{name}.head:
  %{name}.k = phi i64 [ 0, %{first} ], [ %{name}.next, %{name} ]
  %{name}.more = icmp slt i64 %{name}.k, %word.count
  br i1 %{name}.more, label %{name}, label %{then}

{name}:
  %{name}.bytes = mul i64 %{name}.k, {{size.number}}
  %{name}.record = getelementptr i8, ptr %words, i64 %{name}.bytes
  %{name}.cell = FIELD ptr number.cell, %{name}.record
{body}
  %{name}.next = add i64 %{name}.k, 1
  br label %{name}.head
"""


def expand(text: str) -> str:
    """`text` as plain LLVM IR. Raises KeyError or ValueError for a name that no table has."""
    counter = itertools.count()

    def field(match: re.Match) -> str:
        indent, name, type, record, word, base = match.groups()
        at = f"%at{next(counter)}"
        return f"{_place(indent, at, base, record, word)}\n{indent}{name} = load {type}, ptr {at}"

    def store(match: re.Match) -> str:
        indent, value, record, word, base = match.groups()
        at = f"%at{next(counter)}"
        return f"{_place(indent, at, base, record, word)}\n{indent}store {value}, ptr {at}"

    return _NUMBER.sub(_number, _STORE.sub(store, _FIELD.sub(field, text)))


def _place(indent: str, at: str, base: str, record: str, word: str) -> str:
    place = call_offset(record, word) if record in CALLS else offset(record, word)
    return f"{indent}{at} = getelementptr i8, ptr {base}, i64 {place}"


def _number(match: re.Match) -> str:
    table, row = match.groups()
    if row is None:
        return str(_NUMBERS[table])
    if table == "size":
        return str(size(row))
    if table in RECORDS:
        return str(offset(table, row))
    return str(_TABLES[table].index(row))
