"""The native driver: one builtin for every plan, driven by tables. No code is generated per plan.

    ptr @preheat_entry(ptr self, ptr args, i64 given, ptr names)      METH_FASTCALL | METH_KEYWORDS

`self` is a bytes object whose 8 bytes are the address of the entry's `program` record. A call
checks the signature and the guards, leases a frame, takes the data pointers of its inputs, makes
its outputs, runs the call records and builds the result. Where the signature differs, or a row that
decides, it gives `miss`; whatever else is unusual calls the program's Python function `slow` and
returns what that returns. Layout of every record: `ir/records.py`.

Before: this text, in the notation of `runtime_text`. After: plain LLVM IR without imports or
addresses; all functions and layouts of the process come through the `context` record. Inputs and
outputs are in `runtime_tensors`, what a plan does in `runtime_calls` and `runtime_library`, on a GPU
`runtime_gpu`; recorded graphs, which stand for all of a plan's calls, in `runtime_graph`.

Requires: the GIL at entry, and it is held at exit. Between "release" and "acquire" records only
kernels and products run. Reference counts: slots listed in `drops` are owned by the call.
Status of the steps: 0 done, 1 fault, 2 late fault, 3 a Python exception is set.
"""

from preheat.generate.runtime_calls import CALLS_TEXT
from preheat.generate.runtime_gpu import GPU_TEXT
from preheat.generate.runtime_graph import GRAPH_TEXT
from preheat.generate.runtime_library import LIBRARY_TEXT
from preheat.generate.runtime_tensors import TENSORS_TEXT
from preheat.generate.runtime_text import each_word, expand


def driver_text() -> str:
    """The LLVM IR text of the driver. Its one public function is `@preheat_entry`."""
    outside = TENSORS_TEXT + CALLS_TEXT + LIBRARY_TEXT + GPU_TEXT + GRAPH_TEXT
    return expand(_ENTRY + _SLOW + _RUN + _RESULT + outside + _ATTRIBUTES)


# ---------------------------------------------------------------------------- the builtin
_ENTRY = """
define ptr @preheat_entry(ptr %self, ptr %args, i64 %given, ptr %names) #{hot} {
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

miss:
  %route.at = getelementptr [4 x i64], ptr %rows, i64 %row, i64 3
  %route = load i64, ptr %route.at
  %verdict = and i64 %route, {verdict}
  %is.open = icmp eq i64 %verdict, 0
  br i1 %is.open, label %ask, label %unfit

unfit:
  %context = FIELD ptr program.context, %program
  %incref = FIELD ptr context.incref, %context
  %other = FIELD ptr program.miss, %program
  call void %incref(ptr %other)
  ret ptr %other

ask:
  %r.miss = call ptr @call_slow(ptr %program, i64 {reason.guard}, i64 %row, ptr %args, i64 %given,
      ptr %names)
  ret ptr %r.miss

fault:                                    ; status 1 and 2 are neighbours among the reasons
  %bits = load i64, ptr %flag
  %reason = add i64 %before, {reason.fault}
  %r.fault = call ptr @call_slow(ptr %program, i64 %reason, i64 %bits, ptr %args, i64 %given,
      ptr %names)
  ret ptr %r.fault
}

; Whether the call has as many arguments as the program's, and the same keywords in the same order.
define internal i1 @fits_signature(ptr %program, i64 %given, ptr %names) #{inline} {
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
define internal ptr @call_slow(ptr %program, i64 %reason, i64 %detail, ptr %args, i64 %given,
    ptr %names) #{rare} {
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
; The result, or null with an exception set, or the status 1 or 2 as a pointer (then *flag.out is
; the flag).
define internal ptr @run(ptr %program, ptr %args, ptr %flag.out) #{inline} {
entry:
  %context = FIELD ptr program.context, %program
  %frame = call ptr @lease(ptr %context, ptr %program)
  %has.frame = icmp ne ptr %frame, null
  br i1 %has.frame, label %prepare, label %raised

prepare:
  STORE i64 0, frame.flag, %frame
  STORE i64 0, frame.written, %frame
  STORE ptr null, frame.thread_state, %frame
  STORE ptr null, frame.deep, %frame
  STORE ptr null, frame.guard, %frame
  %threads = call i64 @usable_threads(ptr %context)
  STORE i64 %threads, frame.threads, %frame
  %taken = call i64 @take_inputs(ptr %context, ptr %program, ptr %frame, ptr %args)
  %is.taken = icmp eq i64 %taken, 0
  br i1 %is.taken, label %choose, label %leave

choose:
  %first = FIELD ptr program.outputs, %program
  %first.count = FIELD i64 program.output_count, %program
  %first.calls = FIELD ptr program.calls, %program
  %replays = FIELD ptr program.replays, %program
  %has.replays = icmp ne ptr %replays, null
  br i1 %has.replays, label %search, label %outputs

search:
  %found = call ptr @find_graph(ptr %context, ptr %program, ptr %frame, ptr %replays)
  %is.found = icmp ne ptr %found, null
  br i1 %is.found, label %reserve, label %outputs

reserve:                                  ; nobody gives it up before the call is over
  %busy = FIELD i64 replay.busy, %found
  %busy.more = add i64 %busy, 1
  STORE i64 %busy.more, replay.busy, %found
  %other = FIELD ptr replay.outputs, %found
  %other.count = FIELD i64 replay.output_count, %found
  %other.calls = FIELD ptr replay.calls, %found
  br label %outputs

outputs:
  %replay = phi ptr [ null, %choose ], [ null, %search ], [ %found, %reserve ]
  %fresh = phi ptr [ %first, %choose ], [ %first, %search ], [ %other, %reserve ]
  %fresh.count = phi i64 [ %first.count, %choose ], [ %first.count, %search ],
      [ %other.count, %reserve ]
  %steps = phi ptr [ %first.calls, %choose ], [ %first.calls, %search ], [ %other.calls, %reserve ]
  %made = call i64 @make_outputs(ptr %context, ptr %program, ptr %frame, ptr %fresh,
      i64 %fresh.count)
  %is.made = icmp eq i64 %made, 0
  br i1 %is.made, label %calls, label %settle

calls:
  call void @set_grad_mode(ptr %context, ptr %program, i1 false)
  %ran = call i64 @run_calls(ptr %context, ptr %program, ptr %frame, ptr %steps)
  call void @set_grad_mode(ptr %context, ptr %program, i1 true)
  %is.run = icmp eq i64 %ran, 0
  br i1 %is.run, label %finish, label %settle

finish:
  %object = call ptr @make_result(ptr %context, ptr %program, ptr %frame)
  br label %settle

settle:
  %code = phi i64 [ %made, %outputs ], [ %ran, %calls ], [ 0, %finish ]
  %value = phi ptr [ null, %outputs ], [ null, %calls ], [ %object, %finish ]
  %was.replay = icmp ne ptr %replay, null
  br i1 %was.replay, label %release, label %leave

release:
  %busy.then = FIELD i64 replay.busy, %replay
  %busy.less = sub i64 %busy.then, 1
  STORE i64 %busy.less, replay.busy, %replay
  br label %leave

leave:
  %status = phi i64 [ %taken, %prepare ], [ %code, %settle ], [ %code, %release ]
  %result = phi ptr [ null, %prepare ], [ %value, %settle ], [ %value, %release ]
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

; Library calls are not for autograd to see where an input requires grad.
define internal void @set_grad_mode(ptr %context, ptr %program, i1 %mode) #{inline} {
entry:
  %off = FIELD i64 program.is_grad_off, %program
  %is.off = icmp ne i64 %off, 0
  br i1 %is.off, label %call, label %done

call:
  %set = FIELD ptr context.set_grad_mode, %context
  call void %set(i1 zeroext %mode)
  br label %done

done:
  ret void
}

; A free frame, or a new one from Python; null with an exception set. The GIL guards the list.
define internal ptr @lease(ptr %context, ptr %program) #{inline} {
entry:
  %streamed = FIELD i64 program.is_streamed, %program
  %is.streamed = icmp ne i64 %streamed, 0
  br i1 %is.streamed, label %by.stream, label %any

by.stream:
  %fitting = call ptr @lease_on_stream(ptr %context, ptr %program)
  ret ptr %fitting

any:
  %head = FIELD ptr program.frames, %program
  %is.free = icmp ne ptr %head, null
  br i1 %is.free, label %pop, label %grow

pop:
  %next = FIELD ptr frame.next, %head
  STORE ptr %next, program.frames, %program
  ret ptr %head

grow:
  %grown = call ptr @grow(ptr %context, ptr %program)
  ret ptr %grown
}

; A frame from Python; null with an exception set. While Python runs other calls may be checked, which
; leave their words: those of this call are put back.
define internal ptr @grow(ptr %context, ptr %program) #{rare} {
entry:
  %words = FIELD ptr program.words, %program
  %word.count = FIELD i64 program.word_count, %program
  %kept = alloca i64, i64 %word.count
  br label %keep.head
""" + each_word("keep", "entry", "ask", """\
  %keep.word = load i64, ptr %keep.cell
  %keep.at = getelementptr i64, ptr %kept, i64 %keep.k
  store i64 %keep.word, ptr %keep.at""") + """
ask:
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
  br label %back.head
""" + each_word("back", "convert", "done", """\
  %back.at = getelementptr i64, ptr %kept, i64 %back.k
  %back.word = load i64, ptr %back.at
  store i64 %back.word, ptr %back.cell""") + """
done:
  ret ptr %made

failed:
  ret ptr null
}

; Drops what the call owns and puts the frame back.
define internal void @give_back(ptr %context, ptr %program, ptr %frame) #{inline} {
entry:
  call void @leave_device(ptr %context, ptr %frame)
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
  %single = FIELD i64 frame.single, %frame
  %is.single = icmp ne i64 %single, 0
  br i1 %is.single, label %spent, label %return

spent:                                    ; Python lets go of it when it makes another
  STORE i64 2, frame.single, %frame
  ret void

return:
  %head.frame = FIELD ptr program.frames, %program
  STORE ptr %head.frame, frame.next, %frame
  STORE ptr %frame, program.frames, %program
  ret void
}

define internal ptr @objects_of(ptr %program, ptr %frame) #{inline} {
  %at = FIELD i64 program.objects_at, %program
  %objects = getelementptr i8, ptr %frame, i64 %at
  ret ptr %objects
}

define internal ptr @scratch_of(ptr %program, ptr %frame) #{inline} {
  %at = FIELD i64 program.scratch_at, %program
  %scratch = getelementptr i8, ptr %frame, i64 %at
  ret ptr %scratch
}

define internal ptr @pointer_at(ptr %frame, i64 %slot) #{inline} {
  %pointers = getelementptr i8, ptr %frame, i64 {size.frame}
  %at = getelementptr ptr, ptr %pointers, i64 %slot
  ret ptr %at
}

; torch.get_num_threads(); 1 without OpenMP and in a forked child.
define internal i64 @usable_threads(ptr %context) #{inline} {
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

# ---------------------------------------------------------------------------- the result
_RESULT = """
define internal ptr @make_result(ptr %context, ptr %program, ptr %frame) #{inline} {
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

"""

# Each function costs LLVM 0.3 ms of passes besides its code, so what has one place joins its caller;
# what a call seldom needs, or what is small beside the work it starts, is not optimised.
_ATTRIBUTES = """
; No loop here may become a call of memset or memcpy: the code has no imports.
attributes #{hot} = { nounwind "no-builtins" }
attributes #{rare} = { nounwind "no-builtins" noinline optnone }
attributes #{inline} = { nounwind "no-builtins" alwaysinline }
"""
