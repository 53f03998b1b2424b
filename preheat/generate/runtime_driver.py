"""The native driver: one builtin for every plan, driven by tables. No code is generated per plan.

    ptr @preheat_entry(ptr self, ptr args, i64 given, ptr names)      METH_FASTCALL | METH_KEYWORDS

`self` is a bytes object whose 8 bytes are the address of the entry's `program` record. A call checks
the signature and the guards, leases a frame, takes the data pointers of its inputs, makes its
outputs, runs the call records and builds the result; whatever is unusual calls the program's Python
function `slow` and returns what that returns. Layout of every record: `ir/records.py`.

Before: this text, with two kinds of line more than LLVM IR has (`%x = FIELD type record.field, %at`
and `STORE value, record.field, %at`). After: plain LLVM IR without imports or addresses; all
functions and layouts of the process come through the `context` record.

Requires: the GIL at entry, and it is held at exit. Between "release" and "acquire" records only
kernels and products run. Reference counts: slots listed in `drops` are owned by the call.
Status of the steps: 0 done, 1 fault, 2 late fault, 3 a Python exception is set.
"""

import re

from preheat.ir.records import ACCESS, CALL_KINDS, CALLS, ORIGINS, REASONS, SHAPES, call_offset, offset, size

# A bytes object begins with reference count, type, length and hash; run/device.py verifies it.
BYTES_PAYLOAD = 32

_FIELD = re.compile(r"^(\s*)(%[\w.]+) = FIELD (\w+) (\w+)\.(\w+), (%[\w.]+)", re.MULTILINE)
_STORE = re.compile(r"^(\s*)STORE (\w+ \S+), (\w+)\.(\w+), (%[\w.]+)", re.MULTILINE)
_NUMBER = re.compile(r"\{(\w+)(?:\.(\w+))?\}")


def driver_text() -> str:
    """The LLVM IR text of the driver. Its one public function is `@preheat_entry`."""
    counter = iter(range(1 << 20))
    text = "\n".join((_ENTRY, _SLOW, _RUN, _INPUTS, _OUTPUTS, _CALLS, _KERNEL, _PRODUCT, _LIBRARY, _RESULT))

    def field(match: re.Match) -> str:
        indent, name, type, record, word, base = match.groups()
        at = f"%at{next(counter)}"
        return (f"{indent}{at} = getelementptr i8, ptr {base}, i64 {_offset(record, word)}\n"
                f"{indent}{name} = load {type}, ptr {at}")

    def store(match: re.Match) -> str:
        indent, value, record, word, base = match.groups()
        at = f"%at{next(counter)}"
        return (f"{indent}{at} = getelementptr i8, ptr {base}, i64 {_offset(record, word)}\n"
                f"{indent}store {value}, ptr {at}")

    return _NUMBER.sub(_number, _STORE.sub(store, _FIELD.sub(field, text)))


def _offset(record: str, word: str) -> int:
    return call_offset(record, word) if record in CALLS else offset(record, word)


def _number(match: re.Match) -> str:
    """{size.input} is a size, {reason.guard} a number of a table row, {payload} the bytes offset."""
    table, row = match.groups()
    if table == "payload":
        return str(BYTES_PAYLOAD)
    if table == "size":
        return str(size(row))
    if table in ("gemm", "frame"):
        return str(offset(table, row))
    tables = {"reason": REASONS, "kind": CALL_KINDS, "origin": ORIGINS, "access": ACCESS, "shape": SHAPES}
    return str(tables[table].index(row))


# ---------------------------------------------------------------------------- the builtin
_ENTRY = """
define ptr @preheat_entry(ptr %self, ptr %args, i64 %given, ptr %names) #0 {
entry:
  %flag = alloca i64
  %program.at = getelementptr i8, ptr %self, i64 {payload}
  %program = load ptr, ptr %program.at
  %fits = call i1 @fits_signature(ptr %program, i64 %given, ptr %names)
  br i1 %fits, label %check, label %unfit

check:
  %rows = FIELD ptr program.rows, %program
  %row.count = FIELD i64 program.row_count, %program
  %row = call i64 @preheat_check(ptr %rows, i64 %row.count, ptr %args)
  %holds = icmp slt i64 %row, 0
  br i1 %holds, label %run, label %miss

run:
  %result = call ptr @run(ptr %program, ptr %args, ptr %flag)
  %code = ptrtoint ptr %result to i64
  %before = add i64 %code, -1
  %is.fault = icmp ult i64 %before, 2
  br i1 %is.fault, label %fault, label %done

done:
  ret ptr %result

unfit:
  %r.unfit = call ptr @call_slow(ptr %program, i64 {reason.signature}, i64 0, ptr %args, i64 %given, ptr %names)
  ret ptr %r.unfit

miss:
  %r.miss = call ptr @call_slow(ptr %program, i64 {reason.guard}, i64 %row, ptr %args, i64 %given, ptr %names)
  ret ptr %r.miss

fault:                                    ; status 1 and 2 are neighbours among the reasons
  %bits = load i64, ptr %flag
  %reason = add i64 %before, {reason.fault}
  %r.fault = call ptr @call_slow(ptr %program, i64 %reason, i64 %bits, ptr %args, i64 %given, ptr %names)
  ret ptr %r.fault
}

; Whether the call has as many arguments as the program's, and the same keywords in the same order.
define internal i1 @fits_signature(ptr %program, i64 %given, ptr %names) #0 {
entry:
  %positional = FIELD i64 program.positional, %program
  %keywords = FIELD i64 program.keywords, %program
  %same.count = icmp eq i64 %given, %positional
  br i1 %same.count, label %counted, label %no

counted:
  %has.names = icmp ne ptr %names, null
  br i1 %has.names, label %named, label %unnamed

unnamed:
  %expects.none = icmp eq i64 %keywords, 0
  ret i1 %expects.none

named:
  %context = FIELD ptr program.context, %program
  %tuple.size = FIELD ptr context.tuple_size, %context
  %count = call i64 %tuple.size(ptr %names)
  %same.names = icmp eq i64 %count, %keywords
  br i1 %same.names, label %head, label %no

head:
  %i = phi i64 [ 0, %named ], [ %i.next, %next ]
  %more = icmp slt i64 %i, %keywords
  br i1 %more, label %compare, label %yes

compare:
  %expected.names = FIELD ptr program.keyword_names, %program
  %tuple.get = FIELD ptr context.tuple_get, %context
  %found = call ptr %tuple.get(ptr %names, i64 %i)
  %expected = call ptr %tuple.get(ptr %expected.names, i64 %i)
  %is.it = icmp eq ptr %found, %expected     ; names in code are interned
  br i1 %is.it, label %next, label %spell

spell:
  %unicode.compare = FIELD ptr context.unicode_compare, %context
  %order = call i32 %unicode.compare(ptr %found, ptr %expected)
  %is.equal = icmp eq i32 %order, 0
  br i1 %is.equal, label %next, label %no

next:
  %i.next = add i64 %i, 1
  br label %head

yes:
  ret i1 true

no:
  ret i1 false
}
"""

# ---------------------------------------------------------------------------- the way out
_SLOW = """
; slow(reason, detail, arguments as a tuple, names of the last ones as a tuple)
define internal ptr @call_slow(ptr %program, i64 %reason, i64 %detail, ptr %args, i64 %given, ptr %names) #0 {
entry:
  %four = alloca [4 x ptr]
  %context = FIELD ptr program.context, %program
  %tuple.size = FIELD ptr context.tuple_size, %context
  %tuple.new = FIELD ptr context.tuple_new, %context
  %tuple.set = FIELD ptr context.tuple_set, %context
  %incref = FIELD ptr context.incref, %context
  %decref = FIELD ptr context.decref, %context
  %has.names = icmp ne ptr %names, null
  br i1 %has.names, label %named, label %unnamed

named:
  %name.count = call i64 %tuple.size(ptr %names)
  call void %incref(ptr %names)
  br label %collect

unnamed:
  %no.names = call ptr %tuple.new(i64 0)
  br label %collect

collect:
  %extra = phi i64 [ %name.count, %named ], [ 0, %unnamed ]
  %names.owned = phi ptr [ %names, %named ], [ %no.names, %unnamed ]
  %count = add i64 %given, %extra
  %tuple = call ptr %tuple.new(i64 %count)
  %has.memory = icmp ne ptr %tuple, null
  br i1 %has.memory, label %head, label %failed

head:
  %i = phi i64 [ 0, %collect ], [ %i.next, %item ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %item, label %call

item:
  %arg.at = getelementptr ptr, ptr %args, i64 %i
  %arg = load ptr, ptr %arg.at
  call void %incref(ptr %arg)
  %set = call i32 %tuple.set(ptr %tuple, i64 %i, ptr %arg)      ; takes the reference
  %i.next = add i64 %i, 1
  br label %head

call:
  %long.from = FIELD ptr context.long_from, %context
  %reason.object = call ptr %long.from(i64 %reason)
  %detail.object = call ptr %long.from(i64 %detail)
  %second = getelementptr ptr, ptr %four, i64 1
  %third = getelementptr ptr, ptr %four, i64 2
  %fourth = getelementptr ptr, ptr %four, i64 3
  store ptr %reason.object, ptr %four
  store ptr %detail.object, ptr %second
  store ptr %tuple, ptr %third
  store ptr %names.owned, ptr %fourth
  %slow = FIELD ptr program.slow, %program
  %vectorcall = FIELD ptr context.vectorcall, %context
  call void %incref(ptr %slow)               ; the call may replace the program's own
  %result = call ptr %vectorcall(ptr %slow, ptr %four, i64 4, ptr null)
  call void %decref(ptr %slow)
  call void %decref(ptr %reason.object)
  call void %decref(ptr %detail.object)
  call void %decref(ptr %tuple)
  call void %decref(ptr %names.owned)
  ret ptr %result

failed:
  call void %decref(ptr %names.owned)
  ret ptr null
}
"""

# ---------------------------------------------------------------------------- a run
_RUN = """
; The result, or null with an exception set, or the status 1 or 2 as a pointer (then *flag.out is the flag).
define internal ptr @run(ptr %program, ptr %args, ptr %flag.out) #0 {
entry:
  %context = FIELD ptr program.context, %program
  %frame = call ptr @lease(ptr %context, ptr %program)
  %has.frame = icmp ne ptr %frame, null
  br i1 %has.frame, label %prepare, label %raised

prepare:
  STORE i64 0, frame.flag, %frame
  STORE ptr null, frame.thread_state, %frame
  STORE ptr null, frame.deep, %frame
  %threads = call i64 @usable_threads(ptr %context)
  STORE i64 %threads, frame.threads, %frame
  %taken = call i64 @take_inputs(ptr %context, ptr %program, ptr %frame, ptr %args)
  %is.taken = icmp eq i64 %taken, 0
  br i1 %is.taken, label %outputs, label %leave

outputs:
  %made = call i64 @make_outputs(ptr %context, ptr %program, ptr %frame)
  %is.made = icmp eq i64 %made, 0
  br i1 %is.made, label %calls, label %leave

calls:
  %ran = call i64 @run_calls(ptr %context, ptr %program, ptr %frame)
  %is.run = icmp eq i64 %ran, 0
  br i1 %is.run, label %finish, label %leave

finish:
  %object = call ptr @make_result(ptr %context, ptr %program, ptr %frame)
  br label %leave

leave:
  %status = phi i64 [ %taken, %prepare ], [ %made, %outputs ], [ %ran, %calls ], [ 0, %finish ]
  %result = phi ptr [ null, %prepare ], [ null, %outputs ], [ null, %calls ], [ %object, %finish ]
  %flag = FIELD i64 frame.flag, %frame
  store i64 %flag, ptr %flag.out
  call void @give_back(ptr %context, ptr %program, ptr %frame)
  switch i64 %status, label %raised [
    i64 0, label %done
    i64 1, label %faulted
    i64 2, label %faulted
  ]

done:
  ret ptr %result

faulted:
  %as.pointer = inttoptr i64 %status to ptr
  ret ptr %as.pointer

raised:
  ret ptr null
}

; A free frame, or a new one from Python; null with an exception set. The GIL guards the list.
define internal ptr @lease(ptr %context, ptr %program) #0 {
entry:
  %head = FIELD ptr program.frames, %program
  %is.free = icmp ne ptr %head, null
  br i1 %is.free, label %pop, label %grow

pop:
  %next = FIELD ptr frame.next, %head
  STORE ptr %next, program.frames, %program
  ret ptr %head

grow:
  %new.frame = FIELD ptr program.new_frame, %program
  %vectorcall = FIELD ptr context.vectorcall, %context
  %number = call ptr %vectorcall(ptr %new.frame, ptr null, i64 0, ptr null)
  %has.number = icmp ne ptr %number, null
  br i1 %has.number, label %convert, label %failed

convert:
  %long.as = FIELD ptr context.long_as, %context
  %decref = FIELD ptr context.decref, %context
  %made = call ptr %long.as(ptr %number)
  call void %decref(ptr %number)
  ret ptr %made

failed:
  ret ptr null
}

; Drops what the call owns and puts the frame back.
define internal void @give_back(ptr %context, ptr %program, ptr %frame) #0 {
entry:
  %decref = FIELD ptr context.decref, %context
  %drops = FIELD ptr program.drops, %program
  %count = FIELD i64 program.drop_count, %program
  %objects = call ptr @objects_of(ptr %program, ptr %frame)
  br label %head

head:
  %i = phi i64 [ 0, %entry ], [ %i.next, %next ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %drop, label %deep

drop:
  %slot.at = getelementptr i64, ptr %drops, i64 %i
  %slot = load i64, ptr %slot.at
  %object.at = getelementptr ptr, ptr %objects, i64 %slot
  %object = load ptr, ptr %object.at
  %is.owned = icmp ne ptr %object, null
  br i1 %is.owned, label %owned, label %next

owned:
  store ptr null, ptr %object.at
  call void %decref(ptr %object)
  br label %next

next:
  %i.next = add i64 %i, 1
  br label %head

deep:
  %deep.tuple = FIELD ptr frame.deep, %frame
  %has.deep = icmp ne ptr %deep.tuple, null
  br i1 %has.deep, label %drop.deep, label %push

drop.deep:
  call void %decref(ptr %deep.tuple)
  br label %push

push:
  %head.frame = FIELD ptr program.frames, %program
  STORE ptr %head.frame, frame.next, %frame
  STORE ptr %frame, program.frames, %program
  ret void
}

define internal ptr @objects_of(ptr %program, ptr %frame) #0 {
  %at = FIELD i64 program.objects_at, %program
  %objects = getelementptr i8, ptr %frame, i64 %at
  ret ptr %objects
}

define internal ptr @scratch_of(ptr %program, ptr %frame) #0 {
  %at = FIELD i64 program.scratch_at, %program
  %scratch = getelementptr i8, ptr %frame, i64 %at
  ret ptr %scratch
}

define internal ptr @pointer_at(ptr %frame, i64 %slot) #0 {
  %pointers = getelementptr i8, ptr %frame, i64 {size.frame}
  %at = getelementptr ptr, ptr %pointers, i64 %slot
  ret ptr %at
}

; torch.get_num_threads(); 1 without OpenMP and in a forked child.
define internal i64 @usable_threads(ptr %context) #0 {
entry:
  %forked = FIELD i64 context.is_forked, %context
  %max.threads = FIELD ptr context.omp_max_threads, %context
  %is.child = icmp ne i64 %forked, 0
  %is.absent = icmp eq ptr %max.threads, null
  %is.single = or i1 %is.child, %is.absent
  br i1 %is.single, label %one, label %ask

one:
  ret i64 1

ask:
  %threads = call i32 %max.threads()
  %wide = sext i32 %threads to i64
  ret i64 %wide
}
"""

# ---------------------------------------------------------------------------- inputs and outputs
_INPUTS = """
define internal i64 @take_inputs(ptr %context, ptr %program, ptr %frame, ptr %args) #0 {
entry:
  %inputs = FIELD ptr program.inputs, %program
  %count = FIELD i64 program.input_count, %program
  %tensor.offset = FIELD i64 context.tensor_offset, %context
  %objects = call ptr @objects_of(ptr %program, ptr %frame)
  %deep = FIELD ptr program.deep, %program
  %has.deep = icmp ne ptr %deep, null
  br i1 %has.deep, label %dig, label %start

dig:                                      ; one Python call for all that lies inside arguments
  %positional = FIELD i64 program.positional, %program
  %keywords = FIELD i64 program.keywords, %program
  %arg.count = add i64 %positional, %keywords
  %vectorcall = FIELD ptr context.vectorcall, %context
  %dug = call ptr %vectorcall(ptr %deep, ptr %args, i64 %arg.count, ptr null)
  STORE ptr %dug, frame.deep, %frame
  %is.dug = icmp ne ptr %dug, null
  br i1 %is.dug, label %start, label %lost

start:
  %inside = phi ptr [ null, %entry ], [ %dug, %dig ]
  br label %head

head:
  %i = phi i64 [ 0, %start ], [ %i.next, %next ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %take, label %done

take:
  %record.bytes = mul i64 %i, {size.input}
  %record = getelementptr i8, ptr %inputs, i64 %record.bytes
  %origin = FIELD i64 input.origin, %record
  %value = FIELD i64 input.value, %record
  switch i64 %origin, label %bound [
    i64 {origin.argument}, label %argument
    i64 {origin.deep}, label %within
  ]

bound:
  %bound.object = inttoptr i64 %value to ptr
  br label %have

argument:
  %arg.at = getelementptr ptr, ptr %args, i64 %value
  %arg = load ptr, ptr %arg.at
  br label %have

within:
  %tuple.get = FIELD ptr context.tuple_get, %context
  %part = call ptr %tuple.get(ptr %inside, i64 %value)
  br label %have

have:
  %object = phi ptr [ %bound.object, %bound ], [ %arg, %argument ], [ %part, %within ]
  %slot = FIELD i64 input.slot, %record
  %object.at = getelementptr ptr, ptr %objects, i64 %slot
  store ptr %object, ptr %object.at
  %access = FIELD i64 input.access, %record
  %needs.data = icmp ne i64 %access, {access.none}
  br i1 %needs.data, label %data, label %next

data:
  %itemsize = FIELD i64 input.itemsize, %record
  %tensor = getelementptr i8, ptr %object, i64 %tensor.offset
  %pointer.at = call ptr @pointer_at(ptr %frame, i64 %slot)
  %is.write = icmp eq i64 %access, {access.write}
  %code = call i32 @data_pointer(ptr %context, ptr %tensor, i64 %itemsize, i1 %is.write, ptr %pointer.at)
  %is.fine = icmp eq i32 %code, 0
  br i1 %is.fine, label %next, label %faulted

next:
  %i.next = add i64 %i, 1
  br label %head

done:
  ret i64 0

faulted:
  ret i64 1

lost:
  %judged = call i64 @judge(ptr %context)
  ret i64 %judged
}

; Stores the address of the first element of the at::Tensor at `tensor`; 0, or the error code of torch.
; Memory that will be written is asked of torch, which ends a sharing of lazy copies first.
define internal i32 @data_pointer(ptr %context, ptr %tensor, i64 %itemsize, i1 %is.write, ptr %out) #0 {
entry:
  %storage.offset = FIELD i64 context.storage_offset, %context
  %is.unknown = icmp eq i64 %storage.offset, 0
  %asks = or i1 %is.unknown, %is.write
  br i1 %asks, label %ask, label %read

read:
  %data.offset = FIELD i64 context.data_offset, %context
  %element.offset = FIELD i64 context.element_offset, %context
  %impl = load ptr, ptr %tensor
  %storage.at = getelementptr i8, ptr %impl, i64 %storage.offset
  %storage = load ptr, ptr %storage.at
  %data.at = getelementptr i8, ptr %storage, i64 %data.offset
  %data = load ptr, ptr %data.at
  %elements.at = getelementptr i8, ptr %impl, i64 %element.offset
  %elements = load i64, ptr %elements.at
  %bytes = mul i64 %elements, %itemsize
  %pointer = getelementptr i8, ptr %data, i64 %bytes
  store ptr %pointer, ptr %out
  ret i32 0

ask:
  %get = FIELD ptr context.get_data_ptr, %context
  %code = call i32 %get(ptr %tensor, ptr %out)
  ret i32 %code
}
"""

_OUTPUTS = """
define internal i64 @make_outputs(ptr %context, ptr %program, ptr %frame) #0 {
entry:
  %handle.at = alloca ptr
  %outputs = FIELD ptr program.outputs, %program
  %count = FIELD i64 program.output_count, %program
  %empty = FIELD ptr context.empty_strided, %context
  %wrap = FIELD ptr context.wrap_tensor, %context
  %delete = FIELD ptr context.delete_tensor, %context
  %tensor.offset = FIELD i64 context.tensor_offset, %context
  %objects = call ptr @objects_of(ptr %program, ptr %frame)
  br label %head

head:
  %i = phi i64 [ 0, %entry ], [ %i.next, %next ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %make, label %done

make:
  %record.bytes = mul i64 %i, {size.output}
  %record = getelementptr i8, ptr %outputs, i64 %record.bytes
  %slot = FIELD i64 output.slot, %record
  %rank = FIELD i64 output.rank, %record
  %sizes = FIELD ptr output.sizes, %record
  %strides = FIELD ptr output.strides, %record
  %dtype = FIELD i32 output.dtype, %record
  %itemsize = FIELD i64 output.itemsize, %record
  %code = call i32 %empty(i64 %rank, ptr %sizes, ptr %strides, i32 %dtype, i32 0, i32 0, ptr %handle.at)
  %is.made = icmp eq i32 %code, 0            ; out of memory: eager says so better
  br i1 %is.made, label %wrap.it, label %faulted

wrap.it:
  %handle = load ptr, ptr %handle.at
  %object = call ptr %wrap(ptr %handle)
  %deleted = call i32 %delete(ptr %handle)
  %is.wrapped = icmp ne ptr %object, null
  br i1 %is.wrapped, label %data, label %raised

data:
  %object.at = getelementptr ptr, ptr %objects, i64 %slot
  store ptr %object, ptr %object.at
  %tensor = getelementptr i8, ptr %object, i64 %tensor.offset
  %pointer.at = call ptr @pointer_at(ptr %frame, i64 %slot)
  %data.code = call i32 @data_pointer(ptr %context, ptr %tensor, i64 %itemsize, i1 false, ptr %pointer.at)
  %is.fine = icmp eq i32 %data.code, 0
  br i1 %is.fine, label %next, label %faulted

next:
  %i.next = add i64 %i, 1
  br label %head

done:
  ret i64 0

faulted:
  ret i64 1

raised:
  ret i64 3
}
"""

# ---------------------------------------------------------------------------- the call records
_CALLS = """
define internal i64 @run_calls(ptr %context, ptr %program, ptr %frame) #0 {
entry:
  %calls = FIELD ptr program.calls, %program
  %scratch = call ptr @scratch_of(ptr %program, ptr %frame)
  %objects = call ptr @objects_of(ptr %program, ptr %frame)
  br label %step

step:
  %call = phi ptr [ %calls, %entry ], [ %call.next, %next ]
  %call.next = getelementptr i8, ptr %call, i64 {size.call}
  %kind = FIELD i64 call.kind, %call
  switch i64 %kind, label %end [
    i64 {kind.kernel}, label %kernel
    i64 {kind.product}, label %product
    i64 {kind.products}, label %products
    i64 {kind.library}, label %library
    i64 {kind.offset}, label %offset
    i64 {kind.free}, label %free
    i64 {kind.release}, label %release
    i64 {kind.acquire}, label %acquire
    i64 {kind.test}, label %test
    i64 {kind.test_late}, label %test
  ]

kernel:
  call void @call_kernel(ptr %context, ptr %frame, ptr %scratch, ptr %call)
  br label %next

product:
  call void @call_product(ptr %context, ptr %frame, ptr %scratch, ptr %call, i1 false)
  br label %next

products:
  call void @call_product(ptr %context, ptr %frame, ptr %scratch, ptr %call, i1 true)
  br label %next

library:
  %status = call i64 @call_library(ptr %context, ptr %frame, ptr %objects, ptr %scratch, ptr %call)
  %is.fine = icmp eq i64 %status, 0
  br i1 %is.fine, label %next, label %leave

offset:
  %moved.slot = FIELD i64 offset.slot, %call
  %base.slot = FIELD i64 offset.base, %call
  %bytes = FIELD i64 offset.bytes, %call
  %base.at = call ptr @pointer_at(ptr %frame, i64 %base.slot)
  %moved.at = call ptr @pointer_at(ptr %frame, i64 %moved.slot)
  %base = load ptr, ptr %base.at
  %moved = getelementptr i8, ptr %base, i64 %bytes
  store ptr %moved, ptr %moved.at
  br label %next

free:
  %free.slot = FIELD i64 free.slot, %call
  %object.at = getelementptr ptr, ptr %objects, i64 %free.slot
  %object = load ptr, ptr %object.at
  store ptr null, ptr %object.at
  %decref = FIELD ptr context.decref, %context
  call void %decref(ptr %object)
  br label %next

release:
  %save = FIELD ptr context.save_thread, %context
  %state = call ptr %save()
  STORE ptr %state, frame.thread_state, %frame
  br label %next

acquire:
  call void @acquire(ptr %context, ptr %frame)
  br label %next

test:
  %flag = FIELD i64 frame.flag, %frame
  %is.set = icmp ne i64 %flag, 0
  br i1 %is.set, label %flagged, label %next

flagged:
  %is.late = icmp eq i64 %kind, {kind.test_late}
  %fault = select i1 %is.late, i64 2, i64 1
  br label %leave

next:
  br label %step

end:
  br label %leave

leave:
  %code = phi i64 [ 0, %end ], [ %status, %library ], [ %fault, %flagged ]
  call void @acquire(ptr %context, ptr %frame)
  ret i64 %code
}

; Takes the GIL back if this frame gave it away.
define internal void @acquire(ptr %context, ptr %frame) #0 {
entry:
  %state = FIELD ptr frame.thread_state, %frame
  %is.away = icmp ne ptr %state, null
  br i1 %is.away, label %restore, label %done

restore:
  %restore.thread = FIELD ptr context.restore_thread, %context
  call void %restore.thread(ptr %state)
  STORE ptr null, frame.thread_state, %frame
  br label %done

done:
  ret void
}
"""

_KERNEL = """
; Data pointers and the flag's address into scratch, then the kernel over its extent, alone or as a team.
define internal void @call_kernel(ptr %context, ptr %frame, ptr %scratch, ptr %call) #0 {
entry:
  %team = alloca [4 x i64]
  %kernel = FIELD ptr kernel.address, %call
  %params = FIELD i64 kernel.params, %call
  %slots = FIELD ptr kernel.slots, %call
  %extent = FIELD i64 kernel.extent, %call
  %grain = FIELD i64 kernel.grain, %call
  br label %head

head:
  %i = phi i64 [ 0, %entry ], [ %i.next, %fill ]
  %more = icmp slt i64 %i, %params
  br i1 %more, label %fill, label %filled

fill:
  %slot.at = getelementptr i64, ptr %slots, i64 %i
  %slot = load i64, ptr %slot.at
  %pointer.at = call ptr @pointer_at(ptr %frame, i64 %slot)
  %pointer = load ptr, ptr %pointer.at
  %param.at = getelementptr ptr, ptr %scratch, i64 %i
  store ptr %pointer, ptr %param.at
  %i.next = add i64 %i, 1
  br label %head

filled:
  %flag.at = getelementptr i8, ptr %frame, i64 {frame.flag}
  %last.at = getelementptr ptr, ptr %scratch, i64 %params
  store ptr %flag.at, ptr %last.at
  %parallel = FIELD ptr context.gomp_parallel, %context
  %threads = FIELD i64 frame.threads, %frame
  %has.grain = icmp sgt i64 %grain, 0
  %has.openmp = icmp ne ptr %parallel, null
  %may.share = and i1 %has.grain, %has.openmp
  br i1 %may.share, label %count, label %alone

count:
  %shares = sdiv i64 %extent, %grain
  %is.less = icmp slt i64 %shares, %threads
  %members = select i1 %is.less, i64 %shares, i64 %threads
  %is.team = icmp sgt i64 %members, 1
  br i1 %is.team, label %together, label %alone

alone:
  call void %kernel(ptr %scratch, i64 0, i64 %extent)
  ret void

together:
  STORE ptr %kernel, team.kernel, %team
  STORE ptr %scratch, team.arguments, %team
  STORE i64 %extent, team.extent, %team
  STORE ptr %context, team.context, %team
  %members.int = trunc i64 %members to i32
  call void %parallel(ptr @team_member, ptr %team, i32 %members.int, i32 0)
  ret void
}

; One thread's part of a kernel. The team may be smaller than asked for.
define internal void @team_member(ptr %team) #0 {
  %kernel = FIELD ptr team.kernel, %team
  %arguments = FIELD ptr team.arguments, %team
  %extent = FIELD i64 team.extent, %team
  %context = FIELD ptr team.context, %team
  %thread.number = FIELD ptr context.omp_thread, %context
  %team.size = FIELD ptr context.omp_team, %context
  %me.int = call i32 %thread.number()
  %all.int = call i32 %team.size()
  %me = sext i32 %me.int to i64
  %all = sext i32 %all.int to i64
  %after.me = add i64 %me, 1
  %scaled.begin = mul i64 %extent, %me
  %scaled.end = mul i64 %extent, %after.me
  %begin = sdiv i64 %scaled.begin, %all
  %end = sdiv i64 %scaled.end, %all
  call void %kernel(ptr %arguments, i64 %begin, i64 %end)
  ret void
}
"""

_PRODUCT = """
; ?gemm for each batch, or ?gemm_batch once. In a forked child the BLAS gets one thread.
define internal void @call_product(ptr %context, ptr %frame, ptr %scratch, ptr %call, i1 %is.grouped) #0 {
entry:
  %routine = FIELD ptr product.routine, %call
  %gemm = FIELD ptr product.gemm, %call
  %left.slot = FIELD i64 product.left, %call
  %right.slot = FIELD i64 product.right, %call
  %out.slot = FIELD i64 product.out, %call
  %batch = FIELD i64 product.batch, %call
  %offsets = FIELD ptr product.offsets, %call
  %left.at = call ptr @pointer_at(ptr %frame, i64 %left.slot)
  %right.at = call ptr @pointer_at(ptr %frame, i64 %right.slot)
  %out.at = call ptr @pointer_at(ptr %frame, i64 %out.slot)
  %left = load ptr, ptr %left.at
  %right = load ptr, ptr %right.at
  %out = load ptr, ptr %out.at
  %left.flag = getelementptr i8, ptr %gemm, i64 {gemm.left_flag}
  %right.flag = getelementptr i8, ptr %gemm, i64 {gemm.right_flag}
  %m = getelementptr i8, ptr %gemm, i64 {gemm.m}
  %n = getelementptr i8, ptr %gemm, i64 {gemm.n}
  %k = getelementptr i8, ptr %gemm, i64 {gemm.k}
  %alpha = getelementptr i8, ptr %gemm, i64 {gemm.alpha}
  %left.leading = getelementptr i8, ptr %gemm, i64 {gemm.left_leading}
  %right.leading = getelementptr i8, ptr %gemm, i64 {gemm.right_leading}
  %beta = getelementptr i8, ptr %gemm, i64 {gemm.beta}
  %out.leading = getelementptr i8, ptr %gemm, i64 {gemm.out_leading}
  %group.count = getelementptr i8, ptr %gemm, i64 {gemm.group_count}
  %group.size = getelementptr i8, ptr %gemm, i64 {gemm.group_size}
  %forked = FIELD i64 context.is_forked, %context
  %set.threads = FIELD ptr context.mkl_set_threads, %context
  %is.child = icmp ne i64 %forked, 0
  %has.set = icmp ne ptr %set.threads, null
  %is.single = and i1 %is.child, %has.set
  br i1 %is.single, label %single, label %head

single:
  %threads.before = call i32 %set.threads(i32 1)
  br label %head

head:
  %i = phi i64 [ 0, %entry ], [ 0, %single ], [ %i.next, %next ]
  %threads = phi i32 [ 0, %entry ], [ %threads.before, %single ], [ %threads, %next ]
  %more = icmp slt i64 %i, %batch
  br i1 %more, label %each, label %last

each:
  %first = mul i64 %i, 3
  %left.offset.at = getelementptr i64, ptr %offsets, i64 %first
  %second = add i64 %first, 1
  %right.offset.at = getelementptr i64, ptr %offsets, i64 %second
  %third = add i64 %first, 2
  %out.offset.at = getelementptr i64, ptr %offsets, i64 %third
  %left.offset = load i64, ptr %left.offset.at
  %right.offset = load i64, ptr %right.offset.at
  %out.offset = load i64, ptr %out.offset.at
  %left.i = getelementptr i8, ptr %left, i64 %left.offset
  %right.i = getelementptr i8, ptr %right, i64 %right.offset
  %out.i = getelementptr i8, ptr %out, i64 %out.offset
  br i1 %is.grouped, label %note, label %multiply

multiply:
  call void %routine(ptr %left.flag, ptr %right.flag, ptr %m, ptr %n, ptr %k, ptr %alpha, ptr %left.i, ptr %left.leading, ptr %right.i, ptr %right.leading, ptr %beta, ptr %out.i, ptr %out.leading)
  br label %next

note:                                     ; three arrays of pointers in scratch
  %left.place = getelementptr ptr, ptr %scratch, i64 %i
  %right.index = add i64 %batch, %i
  %right.place = getelementptr ptr, ptr %scratch, i64 %right.index
  %out.index = add i64 %right.index, %batch
  %out.place = getelementptr ptr, ptr %scratch, i64 %out.index
  store ptr %left.i, ptr %left.place
  store ptr %right.i, ptr %right.place
  store ptr %out.i, ptr %out.place
  br label %next

next:
  %i.next = add i64 %i, 1
  br label %head

last:
  br i1 %is.grouped, label %group, label %finish

group:
  %rights = getelementptr ptr, ptr %scratch, i64 %batch
  %outs = getelementptr ptr, ptr %rights, i64 %batch
  call void %routine(ptr %left.flag, ptr %right.flag, ptr %m, ptr %n, ptr %k, ptr %alpha, ptr %scratch, ptr %left.leading, ptr %rights, ptr %right.leading, ptr %beta, ptr %outs, ptr %out.leading, ptr %group.count, ptr %group.size)
  br label %finish

finish:
  br i1 %is.single, label %restore, label %done

restore:
  %ignored = call i32 %set.threads(i32 %threads)
  br label %done

done:
  ret void
}
"""

_LIBRARY = """
; A Python call with tensors. Before the first write an Exception is a fault: eager raises its own.
define internal i64 @call_library(ptr %context, ptr %frame, ptr %objects, ptr %scratch, ptr %call) #0 {
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
  %one.code = call i64 @keep_result(ptr %context, ptr %frame, ptr %objects, i64 %one.slot, ptr %result)
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
  %part.code = call i64 @keep_result(ptr %context, ptr %frame, ptr %objects, i64 %part.slot, ptr %part.object)
  %all.next = or i64 %all.fine, %part.code
  %j.next = add i64 %j, 1
  br label %part.head

parted:
  call void %decref(ptr %result)
  ret i64 %all.fine

failed:
  %is.final = FIELD i64 library.is_final, %call
  %must.raise = icmp ne i64 %is.final, 0
  br i1 %must.raise, label %raised, label %judged

judged:
  %status = call i64 @judge(ptr %context)
  ret i64 %status

raised:
  ret i64 3
}

; Clears an Exception: a fault. KeyboardInterrupt and its kind are nobody's fault and stay set.
define internal i64 @judge(ptr %context) #0 {
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
define internal i64 @keep_result(ptr %context, ptr %frame, ptr %objects, i64 %slot, ptr %object) #0 {
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
"""

# ---------------------------------------------------------------------------- the result
_RESULT = """
define internal ptr @make_result(ptr %context, ptr %program, ptr %frame) #0 {
entry:
  %shape = FIELD i64 program.shape, %program
  %slots = FIELD ptr program.results, %program
  %count = FIELD i64 program.result_count, %program
  %incref = FIELD ptr context.incref, %context
  %objects = call ptr @objects_of(ptr %program, ptr %frame)
  %is.value = icmp eq i64 %shape, {shape.value}
  br i1 %is.value, label %value, label %several

value:
  %only.slot = load i64, ptr %slots
  %only.at = getelementptr ptr, ptr %objects, i64 %only.slot
  %only = load ptr, ptr %only.at
  call void %incref(ptr %only)
  ret ptr %only

several:
  %is.tuple = icmp eq i64 %shape, {shape.tuple}
  br i1 %is.tuple, label %new, label %start

new:
  %tuple.new = FIELD ptr context.tuple_new, %context
  %made = call ptr %tuple.new(i64 %count)
  %is.made = icmp ne ptr %made, null
  br i1 %is.made, label %start, label %failed

start:
  %tuple = phi ptr [ null, %several ], [ %made, %new ]
  %scratch = call ptr @scratch_of(ptr %program, ptr %frame)
  %tuple.set = FIELD ptr context.tuple_set, %context
  br label %head

head:
  %i = phi i64 [ 0, %start ], [ %i.next, %next ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %item, label %filled

item:
  %slot.at = getelementptr i64, ptr %slots, i64 %i
  %slot = load i64, ptr %slot.at
  %object.at = getelementptr ptr, ptr %objects, i64 %slot
  %object = load ptr, ptr %object.at
  br i1 %is.tuple, label %set, label %pass

set:
  call void %incref(ptr %object)
  %is.set = call i32 %tuple.set(ptr %tuple, i64 %i, ptr %object)
  br label %next

pass:
  %argument.at = getelementptr ptr, ptr %scratch, i64 %i
  store ptr %object, ptr %argument.at
  br label %next

next:
  %i.next = add i64 %i, 1
  br label %head

filled:
  br i1 %is.tuple, label %done, label %rebuild

done:
  ret ptr %tuple

rebuild:
  %function = FIELD ptr program.rebuild, %program
  %vectorcall = FIELD ptr context.vectorcall, %context
  %result = call ptr %vectorcall(ptr %function, ptr %scratch, i64 %count, ptr null)
  ret ptr %result

failed:
  ret ptr null
}

; No loop here may become a call of memset or memcpy: the code has no imports.
attributes #0 = { nounwind "no-builtins" }
"""
