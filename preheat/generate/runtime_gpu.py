"""The driver's text for kernels of a GPU: launched by its driver's own function, no Python.

    @launch         one kernel on torch's current stream, its parameters where the frame has them
    @choose_device  the device that is current for the calls
    @align          pointers as kernels expect them: of copies where tensors begin elsewhere
    @lease_on_stream   a frame whose memory belongs to torch's current stream

Notation: `runtime_text`. A parameter is passed by the address of its word: of a buffer that is the
frame's pointer, of a number the host's memory itself. A thread that has no device context yet gets
one from Python and launches again. Status: 0 done, 1 fault, 3 a Python exception is set.
Source: CUDA Driver API 13.0, cuLaunchKernel, cuLaunchCooperativeKernel.
"""

GPU_TEXT = """
; Work that is queued still uses a frame's memory: the next call on the same stream runs after it, one
; on another stream would not. What is captured into a graph of the program's own is that graph's.
define internal ptr @lease_on_stream(ptr %context, ptr %program) #{rare} {
entry:
  %stream.at = alloca ptr
  %status.at = alloca i64
  store i64 0, ptr %status.at
  store ptr null, ptr %stream.at
  %device = FIELD i32 program.device_index, %program
  %get.stream = FIELD ptr context.get_stream, %context
  %is.capturing = FIELD ptr context.is_capturing, %context
  %stream.code = call i32 %get.stream(i32 %device, ptr %stream.at)
  %stream = load ptr, ptr %stream.at
  %code = call i32 %is.capturing(ptr %stream, ptr %status.at)
  %status = load i32, ptr %status.at
  %codes = or i32 %stream.code, %code
  %not.idle = or i32 %codes, %status
  %is.idle = icmp eq i32 %not.idle, 0
  %link.first = getelementptr i8, ptr %program, i64 {program.frames}
  br i1 %is.idle, label %head, label %single

head:
  %link = phi ptr [ %link.first, %entry ], [ %link.next, %next ]
  %frame = load ptr, ptr %link
  %is.end = icmp eq ptr %frame, null
  br i1 %is.end, label %more, label %compare

compare:
  %owner = FIELD ptr frame.stream, %frame
  %is.it = icmp eq ptr %owner, %stream
  br i1 %is.it, label %take, label %next

next:
  %link.next = getelementptr i8, ptr %frame, i64 {frame.next}
  br label %head

take:
  %following = FIELD ptr frame.next, %frame
  store ptr %following, ptr %link
  ret ptr %frame

more:
  %made = call ptr @grow(ptr %context, ptr %program)
  %has.made = icmp ne ptr %made, null
  br i1 %has.made, label %mark, label %failed

mark:
  STORE ptr %stream, frame.stream, %made
  ret ptr %made

single:
  %only = call ptr @grow(ptr %context, ptr %program)
  %has.only = icmp ne ptr %only, null
  br i1 %has.only, label %mark.only, label %failed

mark.only:
  STORE i64 1, frame.single, %only
  ret ptr %only

failed:
  ret ptr null
}

define internal i64 @launch(ptr %context, ptr %frame, ptr %scratch, ptr %call) #{rare} {
entry:
  %stream.at = alloca ptr
  %nothing = alloca i64
  store i64 0, ptr %nothing
  %params = FIELD i64 launch.params, %call
  %slots = FIELD ptr launch.slots, %call
  %shape = FIELD ptr launch.shape, %call
  %device = FIELD i32 launch_shape.device_index, %shape
  %words = FIELD i64 launch_shape.words, %shape
  %all = add i64 %params, %words
  br label %head

head:
  %i = phi i64 [ 0, %entry ], [ %i.next, %next ]
  %more = icmp slt i64 %i, %all
  br i1 %more, label %fill, label %filled

fill:
  %param.at = getelementptr ptr, ptr %scratch, i64 %i
  %is.buffer = icmp slt i64 %i, %params
  br i1 %is.buffer, label %buffer, label %word

buffer:                                   ; a slot -1 - n is a number in the host's memory, in slot n
  %slot.at = getelementptr i64, ptr %slots, i64 %i
  %slot = load i64, ptr %slot.at
  %is.number = icmp slt i64 %slot, 0
  %number.slot = sub i64 -1, %slot
  %real.slot = select i1 %is.number, i64 %number.slot, i64 %slot
  %pointer.at = call ptr @pointer_at(ptr %frame, i64 %real.slot)
  %pointer = load ptr, ptr %pointer.at
  %value.at = select i1 %is.number, ptr %pointer, ptr %pointer.at
  store ptr %value.at, ptr %param.at
  br label %next

word:
  store ptr %nothing, ptr %param.at
  br label %next

next:
  %i.next = add i64 %i, 1
  br label %head

filled:
  %get.stream = FIELD ptr context.get_stream, %context
  %stream.code = call i32 %get.stream(i32 %device, ptr %stream.at)
  %has.stream = icmp eq i32 %stream.code, 0
  br i1 %has.stream, label %go, label %faulted

go:
  %stream = load ptr, ptr %stream.at
  %code = call i32 @submit(ptr %context, ptr %call, ptr %stream, ptr %scratch)
  %is.done = icmp eq i32 %code, 0
  br i1 %is.done, label %done, label %bind

bind:
  %bind.device = FIELD ptr context.bind_device, %context
  %vectorcall = FIELD ptr context.vectorcall, %context
  %bound = call ptr %vectorcall(ptr %bind.device, ptr null, i64 0, ptr null)
  %is.bound = icmp ne ptr %bound, null
  br i1 %is.bound, label %again, label %raised

again:
  %decref = FIELD ptr context.decref, %context
  call void %decref(ptr %bound)
  %last.code = call i32 @submit(ptr %context, ptr %call, ptr %stream, ptr %scratch)
  %is.late = icmp eq i32 %last.code, 0
  br i1 %is.late, label %done, label %faulted

raised:
  %judged = call i64 @judge(ptr %context)
  ret i64 %judged

faulted:
  ret i64 1

done:
  ret i64 0
}

; The launch of a call on `stream`, whose parameters are at `params`: the driver's code.
define internal i32 @submit(ptr %context, ptr %call, ptr %stream, ptr %params) #{inline} {
entry:
  %function = FIELD ptr launch.function, %call
  %shape = FIELD ptr launch.shape, %call
  %programs = FIELD i32 launch_shape.programs, %shape
  %threads = FIELD i32 launch_shape.threads, %shape
  %shared = FIELD i32 launch_shape.shared_bytes, %shape
  %together = FIELD i64 launch_shape.is_together, %shape
  %is.together = icmp ne i64 %together, 0
  br i1 %is.together, label %at.once, label %as.room

at.once:
  %launch.together = FIELD ptr context.launch_together, %context
  %code.together = call i32 %launch.together(ptr %function, i32 %programs, i32 1, i32 1, i32 %threads,
      i32 1, i32 1, i32 %shared, ptr %stream, ptr %params)
  ret i32 %code.together

as.room:
  %launch.kernel = FIELD ptr context.launch_kernel, %context
  %code = call i32 %launch.kernel(ptr %function, i32 %programs, i32 1, i32 1, i32 %threads, i32 1,
      i32 1, i32 %shared, ptr %stream, ptr %params, ptr null)
  ret i32 %code
}

; The device of a call is current, by a guard of torch, from one record "device" to the next.
define internal i64 @choose_device(ptr %context, ptr %frame, ptr %call) #{rare} {
entry:
  %guard.at = alloca ptr
  call void @leave_device(ptr %context, ptr %frame)
  %index = FIELD i64 device.index, %call
  %is.outside = icmp slt i64 %index, 0
  br i1 %is.outside, label %done, label %enter

enter:
  %create = FIELD ptr context.create_guard, %context
  %short = trunc i64 %index to i32
  %code = call i32 %create(i32 %short, ptr %guard.at)
  %is.made = icmp eq i32 %code, 0
  br i1 %is.made, label %keep, label %faulted

keep:
  %guard = load ptr, ptr %guard.at
  STORE ptr %guard, frame.guard, %frame
  br label %done

faulted:
  ret i64 1

done:
  ret i64 0
}

define internal void @leave_device(ptr %context, ptr %frame) #{inline} {
entry:
  %guard = FIELD ptr frame.guard, %frame
  %has.guard = icmp ne ptr %guard, null
  br i1 %has.guard, label %leave, label %done

leave:
  STORE ptr null, frame.guard, %frame
  %delete = FIELD ptr context.delete_guard, %context
  %code = call i32 %delete(ptr %guard)
  br label %done

done:
  ret void
}

; Pointers to aligned memory in place of those that are not: of copies, which the call owns. Without a
; function that makes them, because inputs are written, a pointer that is off is a fault.
define internal i64 @align(ptr %context, ptr %frame, ptr %objects, ptr %call) #{rare} {
entry:
  %argument = alloca ptr
  %count = FIELD i64 aligned.count, %call
  %slots = FIELD ptr aligned.slots, %call
  %copies = FIELD ptr aligned.copies, %call
  %function = FIELD ptr aligned.function, %call
  br label %head

head:
  %i = phi i64 [ 0, %entry ], [ %i.next, %next ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %each, label %done

each:
  %slot.at = getelementptr i64, ptr %slots, i64 %i
  %slot = load i64, ptr %slot.at
  %pointer.at = call ptr @pointer_at(ptr %frame, i64 %slot)
  %pointer = load i64, ptr %pointer.at
  %align.mask = sub i64 {align}, 1
  %low = and i64 %pointer, %align.mask
  %is.off = icmp ne i64 %low, 0
  br i1 %is.off, label %off, label %next

off:
  %can.copy = icmp ne ptr %function, null
  br i1 %can.copy, label %copy, label %faulted

copy:
  %object.at = getelementptr ptr, ptr %objects, i64 %slot
  %object = load ptr, ptr %object.at
  store ptr %object, ptr %argument
  %vectorcall = FIELD ptr context.vectorcall, %context
  %made = call ptr %vectorcall(ptr %function, ptr %argument, i64 1, ptr null)
  %is.made = icmp ne ptr %made, null
  br i1 %is.made, label %keep, label %raised

keep:
  %copy.at = getelementptr i64, ptr %copies, i64 %i
  %copy.slot = load i64, ptr %copy.at
  %code = call i64 @keep_result(ptr %context, ptr %frame, ptr %objects, i64 %copy.slot, ptr %made)
  %copied.at = call ptr @pointer_at(ptr %frame, i64 %copy.slot)
  %copied = load i64, ptr %copied.at
  store i64 %copied, ptr %pointer.at
  %is.kept = icmp eq i64 %code, 0
  br i1 %is.kept, label %next, label %faulted

next:
  %i.next = add i64 %i, 1
  br label %head

raised:
  %judged = call i64 @judge(ptr %context)
  ret i64 %judged

faulted:
  ret i64 1

done:
  ret i64 0
}
"""
