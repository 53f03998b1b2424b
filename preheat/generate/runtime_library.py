"""The driver's text for library calls: Python functions of tensors, and C shims of torch.

    @call_library   a Python call; its results are checked by the function itself (run/library.py)
    @call_shim      a C call by words; results are handles, checked here (run/shims.py)

Notation: `runtime_text`. Requires the GIL; a long shim runs without it. An error before the first
write to an input is a fault, so that eager raises it in the user's own frames.
"""

LIBRARY_TEXT = """
; A Python call with tensors. Before the first write an Exception is a fault: eager raises its own.
define internal i64 @call_library(ptr %context, ptr %frame, ptr %objects, ptr %scratch,
    ptr %call) #{rare} {
entry:
  %function = FIELD ptr library.function, %call
  %argument.count = FIELD i64 library.arguments, %call
  %slots = FIELD ptr library.slots, %call
  %result.count = FIELD i64 library.results, %call
  %result.slots = FIELD ptr library.result_slots, %call
  %decref = FIELD ptr context.decref, %context
  br label %head

head:
  %i = phi i64 [ 0, %entry ], [ %i.next, %fill ]
  %more = icmp slt i64 %i, %argument.count
  br i1 %more, label %fill, label %filled

fill:
  %slot.at = getelementptr i64, ptr %slots, i64 %i
  %slot = load i64, ptr %slot.at
  %object.at = getelementptr ptr, ptr %objects, i64 %slot
  %object = load ptr, ptr %object.at
  %argument.at = getelementptr ptr, ptr %scratch, i64 %i
  store ptr %object, ptr %argument.at
  %i.next = add i64 %i, 1
  br label %head

filled:
  %vectorcall = FIELD ptr context.vectorcall, %context
  %result = call ptr %vectorcall(ptr %function, ptr %scratch, i64 %argument.count, ptr null)
  %is.returned = icmp ne ptr %result, null
  br i1 %is.returned, label %returned, label %failed

returned:
  switch i64 %result.count, label %several [
    i64 0, label %drop
    i64 1, label %one
  ]

drop:
  call void %decref(ptr %result)
  ret i64 0

one:
  %one.slot = load i64, ptr %result.slots
  %one.code = call i64 @keep_result(ptr %context, ptr %frame, ptr %objects, i64 %one.slot,
      ptr %result)
  ret i64 %one.code

several:
  %tuple.get = FIELD ptr context.tuple_get, %context
  %incref = FIELD ptr context.incref, %context
  br label %part.head

part.head:
  %j = phi i64 [ 0, %several ], [ %j.next, %part ]
  %all.fine = phi i64 [ 0, %several ], [ %all.next, %part ]
  %more.parts = icmp slt i64 %j, %result.count
  br i1 %more.parts, label %part, label %parted

part:
  %part.slot.at = getelementptr i64, ptr %result.slots, i64 %j
  %part.slot = load i64, ptr %part.slot.at
  %part.object = call ptr %tuple.get(ptr %result, i64 %j)
  call void %incref(ptr %part.object)
  %part.code = call i64 @keep_result(ptr %context, ptr %frame, ptr %objects, i64 %part.slot,
      ptr %part.object)
  %all.next = or i64 %all.fine, %part.code
  %j.next = add i64 %j, 1
  br label %part.head

parted:
  call void %decref(ptr %result)
  ret i64 %all.fine

failed:
  %written = FIELD i64 frame.written, %frame
  %must.raise = icmp ne i64 %written, 0
  br i1 %must.raise, label %raised, label %judged

judged:
  %status = call i64 @judge(ptr %context)
  ret i64 %status

raised:
  ret i64 3
}

; Clears an Exception: a fault. KeyboardInterrupt and its kind are nobody's fault and stay set.
define internal i64 @judge(ptr %context) #{rare} {
entry:
  %exception = FIELD ptr context.exception_class, %context
  %matches = FIELD ptr context.error_matches, %context
  %matched = call i32 %matches(ptr %exception)
  %is.error = icmp ne i32 %matched, 0
  br i1 %is.error, label %clear, label %raised

clear:
  %error.clear = FIELD ptr context.error_clear, %context
  call void %error.clear()
  ret i64 1

raised:
  ret i64 3
}

; The object (a reference it takes) and its data pointer into `slot`.
define internal i64 @keep_result(ptr %context, ptr %frame, ptr %objects, i64 %slot,
    ptr %object) #{rare} {
  %object.at = getelementptr ptr, ptr %objects, i64 %slot
  store ptr %object, ptr %object.at
  %tensor.offset = FIELD i64 context.tensor_offset, %context
  %tensor = getelementptr i8, ptr %object, i64 %tensor.offset
  %pointer.at = call ptr @pointer_at(ptr %frame, i64 %slot)
  %get = FIELD ptr context.get_data_ptr, %context
  %code = call i32 %get(ptr %tensor, ptr %pointer.at)
  %is.bad = icmp ne i32 %code, 0
  %status = zext i1 %is.bad to i64
  ret i64 %status
}

; A C shim of torch by words. It may be declared with fewer words and doubles than it is called
; with: in the calling conventions of x86-64 and AArch64 on Linux the rest is ignored (run/shims.py
; verifies each shim).
define internal i64 @call_shim(ptr %context, ptr %frame, ptr %objects, ptr %scratch,
    ptr %call) #{rare} {
entry:
  %function = FIELD ptr shim.function, %call
  %words = FIELD ptr shim.words, %call
  %count = FIELD i64 shim.word_count, %call
  %doubles = FIELD ptr shim.doubles, %call
  %results = FIELD ptr shim.results, %call
  %result.count = FIELD i64 shim.result_count, %call
  %is.long = FIELD i64 shim.is_long, %call
  %tensor.offset = FIELD i64 context.tensor_offset, %context
  %cells = getelementptr i64, ptr %scratch, i64 {limit}
  br label %head

head:
  %i = phi i64 [ 0, %entry ], [ %i.next, %next ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %fill, label %run

fill:
  %pair = mul i64 %i, 2
  %kind.at = getelementptr i64, ptr %words, i64 %pair
  %value.at = getelementptr i64, ptr %kind.at, i64 1
  %kind = load i64, ptr %kind.at
  %value = load i64, ptr %value.at
  %cell = getelementptr i64, ptr %cells, i64 %i
  %cell.word = ptrtoint ptr %cell to i64
  switch i64 %kind, label %next [
    i64 {word.tensor}, label %tensor
    i64 {word.optional}, label %tensor
    i64 {word.result}, label %result
  ]

tensor:                                   ; an optional one is passed by the address of its handle
  %object.at = getelementptr ptr, ptr %objects, i64 %value
  %object = load ptr, ptr %object.at
  %handle = getelementptr i8, ptr %object, i64 %tensor.offset
  %handle.word = ptrtoint ptr %handle to i64
  store i64 %handle.word, ptr %cell
  %is.optional = icmp eq i64 %kind, {word.optional}
  %tensor.word = select i1 %is.optional, i64 %cell.word, i64 %handle.word
  br label %next

result:
  store i64 0, ptr %cell
  br label %next

next:
  %word = phi i64 [ %value, %fill ], [ %tensor.word, %tensor ], [ %cell.word, %result ]
  %word.at = getelementptr i64, ptr %scratch, i64 %i
  store i64 %word, ptr %word.at
  %i.next = add i64 %i, 1
  br label %head

run:
  %a0 = getelementptr i64, ptr %scratch, i64 0
  %w0 = load i64, ptr %a0
  %a1 = getelementptr i64, ptr %scratch, i64 1
  %w1 = load i64, ptr %a1
  %a2 = getelementptr i64, ptr %scratch, i64 2
  %w2 = load i64, ptr %a2
  %a3 = getelementptr i64, ptr %scratch, i64 3
  %w3 = load i64, ptr %a3
  %a4 = getelementptr i64, ptr %scratch, i64 4
  %w4 = load i64, ptr %a4
  %a5 = getelementptr i64, ptr %scratch, i64 5
  %w5 = load i64, ptr %a5
  %a6 = getelementptr i64, ptr %scratch, i64 6
  %w6 = load i64, ptr %a6
  %a7 = getelementptr i64, ptr %scratch, i64 7
  %w7 = load i64, ptr %a7
  %a8 = getelementptr i64, ptr %scratch, i64 8
  %w8 = load i64, ptr %a8
  %a9 = getelementptr i64, ptr %scratch, i64 9
  %w9 = load i64, ptr %a9
  %a10 = getelementptr i64, ptr %scratch, i64 10
  %w10 = load i64, ptr %a10
  %a11 = getelementptr i64, ptr %scratch, i64 11
  %w11 = load i64, ptr %a11
  %a12 = getelementptr i64, ptr %scratch, i64 12
  %w12 = load i64, ptr %a12
  %a13 = getelementptr i64, ptr %scratch, i64 13
  %w13 = load i64, ptr %a13
  %a14 = getelementptr i64, ptr %scratch, i64 14
  %w14 = load i64, ptr %a14
  %a15 = getelementptr i64, ptr %scratch, i64 15
  %w15 = load i64, ptr %a15
  %a16 = getelementptr i64, ptr %scratch, i64 16
  %w16 = load i64, ptr %a16
  %a17 = getelementptr i64, ptr %scratch, i64 17
  %w17 = load i64, ptr %a17
  %a18 = getelementptr i64, ptr %scratch, i64 18
  %w18 = load i64, ptr %a18
  %a19 = getelementptr i64, ptr %scratch, i64 19
  %w19 = load i64, ptr %a19
  %second.at = getelementptr double, ptr %doubles, i64 1
  %first = load double, ptr %doubles
  %second = load double, ptr %second.at
  %releases = icmp ne i64 %is.long, 0
  br i1 %releases, label %release, label %go

release:
  %save = FIELD ptr context.save_thread, %context
  %state = call ptr %save()
  STORE ptr %state, frame.thread_state, %frame
  br label %go

go:
  %code = call i32 %function(i64 %w0, i64 %w1, i64 %w2, i64 %w3, i64 %w4, i64 %w5, i64 %w6,
    i64 %w7, i64 %w8, i64 %w9, i64 %w10, i64 %w11, i64 %w12, i64 %w13,
    i64 %w14, i64 %w15, i64 %w16, i64 %w17, i64 %w18, i64 %w19,
    double %first, double %second)
  call void @acquire(ptr %context, ptr %frame)
  %is.fine = icmp eq i32 %code, 0
  %first.result = sub i64 %count, %result.count
  br i1 %is.fine, label %keep.head, label %faulted

keep.head:                                ; every handle ends, also after one that does not fit
  %j = phi i64 [ 0, %go ], [ %j.next, %keep ]
  %status = phi i64 [ 0, %go ], [ %status.next, %keep ]
  %more.results = icmp slt i64 %j, %result.count
  br i1 %more.results, label %keep, label %done

keep:
  %place = add i64 %first.result, %j
  %handle.cell = getelementptr i64, ptr %cells, i64 %place
  %made = load ptr, ptr %handle.cell
  %record.bytes = mul i64 %j, {size.output}
  %record = getelementptr i8, ptr %results, i64 %record.bytes
  %kept = call i64 @keep_handle(ptr %context, ptr %frame, ptr %objects, ptr %record, ptr %made)
  %status.next = or i64 %status, %kept
  %j.next = add i64 %j, 1
  br label %keep.head

done:
  ret i64 %status

faulted:
  ret i64 1
}
"""
