"""The rows of the native guard checker: what `run/rows` writes and `generate/runtime_check` reads.

A row claims that a word (8 bytes) has some value under a mask. 32 bytes, little endian, `ROW`:

    u64 address     added to the base, or the function, see the kinds
    u64 expected
    u64 mask        bits that count
    u16 kind, u16 base, u16 save, u16 other           base, save, other: numbers of slots

Slots are 16384 words that live during one check: slot 0 is always 0, slot 1 is `args`. Each row
computes a word, passes if `(word ^ expected) & mask == 0`, and saves the word to slot `save` unless
that is 0, so that later rows can start from a pointer that an earlier one loaded. Most rows load
from an absolute address and save nothing: their last 8 bytes are 0, and they take the short way.

    kind 0 load      word = 8 bytes at slot[base] + address
    kind 1 call      word = function `address` called with slot[base], slot[other] and slot[save] as i64
                     arguments, of which it may take fewer
    kind 2 same      word = slot[base] ^ slot[other]
    kind 3 apart     word = 1 if slot[base] == slot[other] + address else 0
    kind 4 advance   word = slot[base] + address
    kind 5 disjoint  passes if the `address` bytes at slot[base] and the `expected` bytes at
                     slot[other] have none in common (mask and save do not count)
    kind 6 bare      passes if the instance at slot[base] has no attribute of its own: the dict that
                     the word at `address` points to, if it is even and not 0, has 0 at `other` but
                     its lowest bit; and where the word at `expected` has that lowest bit and is not
                     0, the byte at that word + `mask`, the count of values outside a dict, is 0

    kind 10 function word = the double that function `address` of C gives for the doubles in slot[base]
                     and slot[other]; differs unless it is finite
    kind 11 store    the word at `address` becomes slot[base]; always passes
    kind 12 spans    word = 1 if no two of the tensors in the table at `address` (`SPANS`) share a byte

Order matters: a row may trust every row before it (a pointer compared equal to that of a held
object is alive; a type compared equal fixes the layout behind it).
"""

import struct

ROW = struct.Struct("<QQQHHHH")
(LOAD, CALL, SAME, APART, ADVANCE, DISJOINT, BARE, COMPUTE, VERSION, REFRESH, FUNCTION, STORE,
 SPANS) = range(13)
VERDICT = 1 << 15
SLOTS = 16384
ZERO, ARGS, FIRST_FREE = range(3)
ALL_BITS = (1 << 64) - 1

# A table of spans: how many, where a TensorImpl has its storage, where that has its data; then for each
# tensor the slot of its TensorImpl or 0, its address if that is fixed, bytes from the data to its first
# element, bytes that it covers, its first byte now; then the order of first bytes at the last check.
SPAN_HEAD, SPAN_WORDS = 3, 5

# What a compute row does with two words: signed integers of 64 bits, or the bits of doubles. All
# that has no such result, or not Python's, differs: an overflow, a division by zero, an integer
# that no double is. `single_at` and `double_at` read a float at an address; `single` rounds to one;
# `wrapper_class` gives the class of the Python object to which the word at an address points, or the
# other operand if there is none.
OPERATIONS = (
    "int_add", "int_sub", "int_mul", "int_floordiv", "int_mod", "int_abs", "int_min", "int_max",
    "int_eq", "int_lt", "int_le", "and", "or", "float_add", "float_sub", "float_mul",
    "float_truediv", "float_neg", "float_abs", "float_min", "float_max", "float_eq", "float_lt",
    "float_le", "float_sqrt", "float_of_int", "int_of_float",
    "single_at", "double_at", "single", "wrapper_class",
)
