"""The driver's text for the steps of a plan that are native: call records, kernels, products.

    @run_calls      call records in order, until "end"
    @call_kernel    a kernel over its extent, alone or as a team of OpenMP threads
    @call_product   ?gemm for each matrix of a batch, or ?gemm_batch

Notation: `runtime_text`; what each record holds: `ir/records.py`. Status of a step: 0 done, 1
fault, 3 a Python exception is set; a fault after a write is late (2). Calls of the library are in
`runtime_library`.
"""

CALLS_TEXT = """
define internal i64 @run_calls(ptr %context, ptr %program, ptr %frame, ptr %calls) #{inline} {
entry:
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
    i64 {kind.shim}, label %shim
    i64 {kind.make}, label %make
    i64 {kind.view}, label %view
    i64 {kind.lens}, label %lens
    i64 {kind.offset}, label %offset
    i64 {kind.free}, label %free
    i64 {kind.release}, label %release
    i64 {kind.acquire}, label %acquire
    i64 {kind.test}, label %test
    i64 {kind.launch}, label %launch
    i64 {kind.aligned}, label %aligned
    i64 {kind.device}, label %device
    i64 {kind.graph}, label %graph
    i64 {kind.notice}, label %notice
    i64 {kind.write}, label %write
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
  br label %judge

shim:
  %shim.status = call i64 @call_shim(ptr %context, ptr %frame, ptr %objects, ptr %scratch,
      ptr %call)
  br label %judge

make:
  %record = FIELD ptr make.output, %call
  %make.status = call i64 @make_tensor(ptr %context, ptr %frame, ptr %objects, ptr %record)
  br label %judge

view:
  %view.status = call i64 @make_view(ptr %context, ptr %frame, ptr %objects, ptr %call)
  br label %judge

lens:
  %lens.status = call i64 @make_lens(ptr %context, ptr %frame, ptr %objects, ptr %call)
  br label %judge

launch:
  %launch.status = call i64 @launch(ptr %context, ptr %frame, ptr %scratch, ptr %call)
  br label %judge

aligned:
  %aligned.status = call i64 @align(ptr %context, ptr %frame, ptr %objects, ptr %call)
  br label %judge

device:
  %device.status = call i64 @choose_device(ptr %context, ptr %frame, ptr %call)
  br label %judge

graph:
  %graph.status = call i64 @launch_graph(ptr %context, ptr %frame, ptr %call)
  br label %judge

notice:
  %left.at = FIELD ptr notice.left, %call
  %left = load i64, ptr %left.at
  %left.now = sub i64 %left, 1
  store i64 %left.now, ptr %left.at
  %is.due = icmp eq i64 %left.now, 0
  br i1 %is.due, label %library, label %next

judge:
  %judged = phi i64 [ %status, %library ], [ %graph.status, %graph ], [ %shim.status, %shim ],
      [ %make.status, %make ], [ %view.status, %view ], [ %lens.status, %lens ],
      [ %launch.status, %launch ], [ %aligned.status, %aligned ], [ %device.status, %device ]
  %is.fine = icmp eq i64 %judged, 0
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
  br i1 %is.set, label %leave, label %next

write:
  STORE i64 1, frame.written, %frame
  br label %next

next:
  br label %step

end:
  br label %leave

leave:
  %code = phi i64 [ 0, %end ], [ %judged, %judge ], [ 1, %test ]
  call void @acquire(ptr %context, ptr %frame)
  %written = FIELD i64 frame.written, %frame
  %is.written = icmp ne i64 %written, 0
  %is.fault = icmp eq i64 %code, 1
  %is.late = and i1 %is.written, %is.fault
  %final = select i1 %is.late, i64 2, i64 %code
  ret i64 %final
}

; Takes the GIL back if this frame gave it away.
define internal void @acquire(ptr %context, ptr %frame) #{inline} {
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
; Data pointers and the flag's address into scratch, then the kernel over its extent, alone or as
; a team.
define internal void @call_kernel(ptr %context, ptr %frame, ptr %scratch, ptr %call) #{inline} {
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
define internal void @team_member(ptr %team) #{rare} {
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
; ?gemm for each batch, or ?gemm_batch once. In a forked child the BLAS gets one thread.
define internal void @call_product(ptr %context, ptr %frame, ptr %scratch, ptr %call,
    i1 %is.grouped) #{rare} {
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
  call void %routine(
    ptr %left.flag, ptr %right.flag, ptr %m, ptr %n, ptr %k, ptr %alpha, ptr %left.i,
        ptr %left.leading,
    ptr %right.i, ptr %right.leading, ptr %beta, ptr %out.i, ptr %out.leading)
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
  call void %routine(
    ptr %left.flag, ptr %right.flag, ptr %m, ptr %n, ptr %k, ptr %alpha, ptr %scratch,
        ptr %left.leading,
    ptr %rights, ptr %right.leading, ptr %beta, ptr %outs, ptr %out.leading, ptr %group.count,
        ptr %group.size)
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
