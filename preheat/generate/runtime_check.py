"""The native guard checker: one function for every guard set, driven by a table of rows.

    i64 @preheat_check(ptr rows, i64 n, ptr args)     -1, or the index of the first row that differs

A row claims that the 8 bytes at some place have some value under a mask; `run/rows.py` chooses the
rows so that equal bits imply that the guards hold. The function loads and compares: no imports,
no allocation, no reference counts. The caller holds the GIL, and the objects at absolute addresses
alive. `args` are the call's objects: positional, then keyword arguments in the signature's order.

`ir/rows` says what a row is, what the kinds mean and what slots are. Rows of kind "refresh" write
into the table, so rows are memory of one process and never shared.
"""

import re

from preheat.generate.runtime_numbers import numbers_text
from preheat.ir.rows import SLOTS, SPAN_HEAD, SPAN_WORDS, VERDICT

CHECK_TEXT = """
%Row = type { i64, i64, i64, i64 }  ; address, expected, mask, route

define i64 @preheat_check(ptr %rows, i64 %n, ptr %args) {
entry:
  %slots = alloca [SLOTS x i64], align 64
  %has = alloca i64
  store i64 0, ptr %slots
  %slot1 = getelementptr i64, ptr %slots, i64 1
  %args.word = ptrtoint ptr %args to i64
  store i64 %args.word, ptr %slot1
  %some = icmp sgt i64 %n, 0
  br i1 %some, label %row, label %pass

row:
  %i = phi i64 [ 0, %entry ], [ %i.next, %onward ]
  %at = getelementptr %Row, ptr %rows, i64 %i
  %address = load i64, ptr %at
  %expected.at = getelementptr %Row, ptr %at, i64 0, i32 1
  %expected = load i64, ptr %expected.at
  %mask.at = getelementptr %Row, ptr %at, i64 0, i32 2
  %mask = load i64, ptr %mask.at
  %route.at = getelementptr %Row, ptr %at, i64 0, i32 3
  %route = load i64, ptr %route.at
  %is.plain = icmp eq i64 %route, 0
  br i1 %is.plain, label %plain, label %routed

plain:
  %plain.ptr = inttoptr i64 %address to ptr
  %plain.word = load i64, ptr %plain.ptr, align 1
  %plain.bits = xor i64 %plain.word, %expected
  %plain.counted = and i64 %plain.bits, %mask
  %plain.passes = icmp eq i64 %plain.counted, 0
  br i1 %plain.passes, label %next, label %fail

routed:
  %kind = and i64 %route, KINDS
  %base.bits = lshr i64 %route, 16
  %base.index = and i64 %base.bits, LAST
  %base.at = getelementptr i64, ptr %slots, i64 %base.index
  %base = load i64, ptr %base.at
  %is.load = icmp eq i64 %kind, 0
  br i1 %is.load, label %load, label %other

load:
  %place = add i64 %base, %address
  %place.ptr = inttoptr i64 %place to ptr
  %loaded = load i64, ptr %place.ptr, align 1
  br label %compare

other:
  %other.index = lshr i64 %route, 48
  %other.masked = and i64 %other.index, LAST
  %other.at = getelementptr i64, ptr %slots, i64 %other.masked
  %second = load i64, ptr %other.at
  switch i64 %kind, label %fail [
    i64 1, label %call
    i64 2, label %same
    i64 3, label %apart
    i64 4, label %advance
    i64 5, label %disjoint
    i64 6, label %bare
    i64 7, label %compute
    i64 8, label %version
    i64 9, label %refresh
    i64 10, label %function.of.two
    i64 11, label %keep.word
    i64 12, label %spans
  ]

call:
  %function = inttoptr i64 %address to ptr
  %third.bits = lshr i64 %route, 32
  %third.index = and i64 %third.bits, LAST
  %third.at = getelementptr i64, ptr %slots, i64 %third.index
  %third = load i64, ptr %third.at
  %answer = call i64 %function(i64 %base, i64 %second, i64 %third)
  br label %compare

same:
  %difference = xor i64 %base, %second
  br label %compare

apart:
  %second.place = add i64 %second, %address
  %are.equal = icmp eq i64 %base, %second.place
  %equal.word = zext i1 %are.equal to i64
  br label %compare

advance:
  %advanced = add i64 %base, %address
  br label %compare

disjoint:
  %first.end = add i64 %base, %address
  %second.end = add i64 %second, %expected
  %is.before = icmp ule i64 %first.end, %second
  %is.after = icmp ule i64 %second.end, %base
  %is.disjoint = or i1 %is.before, %is.after
  br i1 %is.disjoint, label %next, label %fail

bare:
  %low.bit = and i64 %other.index, 1
  %used.offset = xor i64 %other.index, %low.bit
  %dict.place = add i64 %base, %address
  %dict.ptr = inttoptr i64 %dict.place to ptr
  %dict = load i64, ptr %dict.ptr, align 1
  %dict.bit = and i64 %dict, 1
  %dict.is.odd = icmp ne i64 %dict.bit, 0
  %dict.is.null = icmp eq i64 %dict, 0
  %is.no.dict = or i1 %dict.is.null, %dict.is.odd
  br i1 %is.no.dict, label %values, label %dict.there

dict.there:
  %used.place = add i64 %dict, %used.offset
  %used.ptr = inttoptr i64 %used.place to ptr
  %used = load i64, ptr %used.ptr, align 1
  %is.empty = icmp eq i64 %used, 0
  br i1 %is.empty, label %values, label %fail

values:
  %values.place = add i64 %base, %expected
  %values.ptr = inttoptr i64 %values.place to ptr
  %values.word = load i64, ptr %values.ptr, align 1
  %values.bit = and i64 %values.word, 1
  %is.other.bit = icmp ne i64 %values.bit, %low.bit
  %values.is.null = icmp eq i64 %values.word, 0
  %is.no.values = or i1 %values.is.null, %is.other.bit
  br i1 %is.no.values, label %next, label %values.there

values.there:
  %count.place = add i64 %values.word, %mask
  %count.ptr = inttoptr i64 %count.place to ptr
  %count = load i8, ptr %count.ptr
  %is.bare = icmp eq i8 %count, 0
  br i1 %is.bare, label %next, label %fail

compute:
  %computed = call i64 @compute(i64 %address, i64 %base, i64 %second, ptr %has)
  %has.word = load i64, ptr %has
  %is.computed = icmp ne i64 %has.word, 0
  br i1 %is.computed, label %compare, label %fail

version:
  %version.place = add i64 %base, %address
  %version.ptr = inttoptr i64 %version.place to ptr
  %version.word = load i64, ptr %version.ptr, align 1
  %is.old = icmp eq i64 %version.word, %expected
  br i1 %is.old, label %leave.out, label %next

leave.out:
  %i.last = add i64 %i, %mask
  br label %onward

refresh:
  %renewed.place = add i64 %base, %address
  %renewed.ptr = inttoptr i64 %renewed.place to ptr
  %renewed = load i64, ptr %renewed.ptr, align 1
  %i.version = sub i64 %i, %expected
  %expects.at = getelementptr %Row, ptr %rows, i64 %i.version, i32 1
  store i64 %renewed, ptr %expects.at
  br label %next

function.of.two:
  %left = bitcast i64 %base to double
  %right = bitcast i64 %second to double
  %double.function = inttoptr i64 %address to ptr
  %double = call double %double.function(double %left, double %right)
  %double.rest = fsub double %double, %double
  %is.finite = fcmp oeq double %double.rest, 0.0
  %double.word = bitcast double %double to i64
  br i1 %is.finite, label %compare, label %fail

keep.word:
  %cell = inttoptr i64 %address to ptr
  store i64 %base, ptr %cell
  br label %next

spans:
  %are.apart = call i64 @spans_apart(i64 %address, ptr %slots)
  br label %compare

compare:
  %word = phi i64 [ %loaded, %load ], [ %answer, %call ], [ %difference, %same ],
                  [ %equal.word, %apart ], [ %advanced, %advance ], [ %computed, %compute ],
                  [ %double.word, %function.of.two ], [ %are.apart, %spans ]
  %bits = xor i64 %word, %expected
  %counted = and i64 %bits, %mask
  %passes = icmp eq i64 %counted, 0
  br i1 %passes, label %keep, label %fail

keep:
  %save.bits = lshr i64 %route, 32
  %save.index = and i64 %save.bits, LAST
  %saves = icmp ne i64 %save.index, 0
  br i1 %saves, label %save, label %next

save:
  %save.at = getelementptr i64, ptr %slots, i64 %save.index
  store i64 %word, ptr %save.at
  br label %next

next:
  br label %onward

onward:
  %i.done = phi i64 [ %i, %next ], [ %i.last, %leave.out ]
  %i.next = add nuw nsw i64 %i.done, 1
  %more = icmp slt i64 %i.next, %n
  br i1 %more, label %row, label %pass

fail:
  ret i64 %i

pass:
  ret i64 -1
}
"""


_SPANS_TEXT = """
; 1 if no two spans of the table share a byte. Their order at the last check is kept in the table:
; most calls find it as it was, and sorting is one pass.
define internal i64 @spans_apart(i64 %table.word, ptr %slots) {
entry:
  %table = inttoptr i64 %table.word to ptr
  %count = load i64, ptr %table
  %storage.at = getelementptr i64, ptr %table, i64 1
  %to.storage = load i64, ptr %storage.at
  %data.at = getelementptr i64, ptr %table, i64 2
  %to.data = load i64, ptr %data.at
  %spans = getelementptr i64, ptr %table, i64 HEAD
  %entry.words = mul i64 %count, WORDS
  %order = getelementptr i64, ptr %spans, i64 %entry.words
  br label %first

first:
  %i = phi i64 [ 0, %entry ], [ %i.next, %first ]
  %i.words = mul i64 %i, WORDS
  %span = getelementptr i64, ptr %spans, i64 %i.words
  %slot = load i64, ptr %span
  %slot.at = getelementptr i64, ptr %slots, i64 %slot
  %moving = load i64, ptr %slot.at
  %fixed.at = getelementptr i64, ptr %span, i64 1
  %fixed = load i64, ptr %fixed.at
  %is.fixed = icmp eq i64 %slot, 0
  %impl = select i1 %is.fixed, i64 %fixed, i64 %moving
  %storage.place = add i64 %impl, %to.storage
  %storage.ptr = inttoptr i64 %storage.place to ptr
  %storage = load i64, ptr %storage.ptr
  %data.place = add i64 %storage, %to.data
  %data.ptr = inttoptr i64 %data.place to ptr
  %data = load i64, ptr %data.ptr
  %offset.at = getelementptr i64, ptr %span, i64 2
  %offset = load i64, ptr %offset.at
  %start = add i64 %data, %offset
  %start.at = getelementptr i64, ptr %span, i64 4
  store i64 %start, ptr %start.at
  %i.next = add nuw nsw i64 %i, 1
  %more = icmp slt i64 %i.next, %count
  br i1 %more, label %first, label %sort

sort:
  %k = phi i64 [ 1, %first ], [ %k.next, %placed ]
  %unsorted = icmp slt i64 %k, %count
  br i1 %unsorted, label %take, label %compare.all

take:
  %k.at = getelementptr i64, ptr %order, i64 %k
  %which = load i64, ptr %k.at
  %which.words = mul i64 %which, WORDS
  %which.start = add i64 %which.words, 4
  %which.at = getelementptr i64, ptr %spans, i64 %which.start
  %from = load i64, ptr %which.at
  br label %shift

shift:
  %j = phi i64 [ %k, %take ], [ %j.less, %move ]
  %is.first = icmp eq i64 %j, 0
  br i1 %is.first, label %placed, label %look

look:
  %j.less = sub i64 %j, 1
  %below.at = getelementptr i64, ptr %order, i64 %j.less
  %below = load i64, ptr %below.at
  %below.words = mul i64 %below, WORDS
  %below.start = add i64 %below.words, 4
  %below.from.at = getelementptr i64, ptr %spans, i64 %below.start
  %below.from = load i64, ptr %below.from.at
  %is.later = icmp ugt i64 %below.from, %from
  br i1 %is.later, label %move, label %placed

move:
  %j.at = getelementptr i64, ptr %order, i64 %j
  store i64 %below, ptr %j.at
  br label %shift

placed:
  %place.at = getelementptr i64, ptr %order, i64 %j
  store i64 %which, ptr %place.at
  %k.next = add nuw nsw i64 %k, 1
  br label %sort

compare.all:
  %n = phi i64 [ 0, %sort ], [ %n.next, %next.span ]
  %n.next = add nuw nsw i64 %n, 1
  %has.next = icmp slt i64 %n.next, %count
  br i1 %has.next, label %pair, label %apart

pair:
  %one.at = getelementptr i64, ptr %order, i64 %n
  %one = load i64, ptr %one.at
  %one.words = mul i64 %one, WORDS
  %one.span = getelementptr i64, ptr %spans, i64 %one.words
  %size.at = getelementptr i64, ptr %one.span, i64 3
  %size = load i64, ptr %size.at
  %begin.at = getelementptr i64, ptr %one.span, i64 4
  %begin = load i64, ptr %begin.at
  %end = add i64 %begin, %size
  %two.at = getelementptr i64, ptr %order, i64 %n.next
  %two = load i64, ptr %two.at
  %two.words = mul i64 %two, WORDS
  %two.start = add i64 %two.words, 4
  %two.from.at = getelementptr i64, ptr %spans, i64 %two.start
  %two.from = load i64, ptr %two.from.at
  %is.behind = icmp ule i64 %end, %two.from
  br i1 %is.behind, label %next.span, label %meet

next.span:
  br label %compare.all

meet:
  ret i64 0

apart:
  ret i64 1
}
"""


def check_text() -> str:
    """The LLVM IR text of the checker; its only function is `@preheat_check`."""
    numbers = {"SLOTS": SLOTS, "LAST": SLOTS - 1, "KINDS": 0xFFFF & ~VERDICT, "HEAD": SPAN_HEAD,
               "WORDS": SPAN_WORDS}
    names = rf"\b({'|'.join(numbers)})\b"
    text = re.sub(names, lambda match: str(numbers[match[0]]), _SPANS_TEXT + CHECK_TEXT)
    return numbers_text() + text
