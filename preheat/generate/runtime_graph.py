"""The driver's text for recorded graphs of a GPU: found, brought up to date, launched.

    @find_graph     the graph that may stand for the calls of this call, or null
    @launch_graph   its nodes get this call's addresses and numbers, then it goes to the stream

Notation: `runtime_text`. A graph serves calls on the stream that it was recorded for, which is not
being captured itself, with tensors at the addresses that it has for good. All other addresses and
numbers are compared with what its nodes have; nodes that differ are set anew, which costs 0.6 us.
Between the first comparison and the launch nothing gives the GIL away, so threads cannot mix; a
launch that is under way keeps what it was launched with. Status: 0 done, 1 fault (nothing has run).
Source: CUDA Driver API 13.0, cuGraphExecKernelNodeSetParams, cuGraphExecMemcpyNodeSetParams.
"""

GRAPH_TEXT = """
define internal ptr @find_graph(ptr %context, ptr %program, ptr %frame, ptr %replays) #{rare} {
entry:
  %stream.at = alloca ptr
  %status.at = alloca i64
  store i64 0, ptr %status.at
  %first = load ptr, ptr %replays
  %has.any = icmp ne ptr %first, null
  br i1 %has.any, label %ask, label %none

ask:
  %device = FIELD i32 program.device_index, %program
  %get.stream = FIELD ptr context.get_stream, %context
  %stream.code = call i32 %get.stream(i32 %device, ptr %stream.at)
  %has.stream = icmp eq i32 %stream.code, 0
  br i1 %has.stream, label %have, label %none

have:
  %stream = load ptr, ptr %stream.at
  br label %head

head:
  %replay = phi ptr [ %first, %have ], [ %following, %next ]
  %is.end = icmp eq ptr %replay, null
  br i1 %is.end, label %none, label %compare

compare:
  %recorded = FIELD ptr replay.stream, %replay
  %is.it = icmp eq ptr %recorded, %stream
  br i1 %is.it, label %fits, label %next

next:
  %following = FIELD ptr replay.next, %replay
  br label %head

fits:                                     ; a graph cannot go into another that is being captured
  %is.capturing = FIELD ptr context.is_capturing, %context
  %code = call i32 %is.capturing(ptr %stream, ptr %status.at)
  %status = load i32, ptr %status.at
  %not.idle = or i32 %code, %status
  %is.idle = icmp eq i32 %not.idle, 0
  br i1 %is.idle, label %addresses, label %none

addresses:
  %fixed = FIELD ptr replay.fixed, %replay
  %fixed.count = FIELD i64 replay.fixed_count, %replay
  br label %fixed.head

fixed.head:
  %i = phi i64 [ 0, %addresses ], [ %i.next, %each ]
  %more = icmp slt i64 %i, %fixed.count
  br i1 %more, label %each, label %settings

each:
  %pair = mul i64 %i, 2
  %slot.at = getelementptr i64, ptr %fixed, i64 %pair
  %expected.at = getelementptr i64, ptr %slot.at, i64 1
  %slot = load i64, ptr %slot.at
  %expected = load ptr, ptr %expected.at
  %pointer.at = call ptr @pointer_at(ptr %frame, i64 %slot)
  %pointer = load ptr, ptr %pointer.at
  %is.there = icmp eq ptr %pointer, %expected
  %i.next = add i64 %i, 1
  br i1 %is.there, label %fixed.head, label %none

settings:
  %switches = FIELD ptr replay.switches, %replay
  %switch.count = FIELD i64 replay.switch_count, %replay
  %vectorcall = FIELD ptr context.vectorcall, %context
  %decref = FIELD ptr context.decref, %context
  br label %switch.head

switch.head:
  %k = phi i64 [ 0, %settings ], [ %k.next, %told ]
  %more.switches = icmp slt i64 %k, %switch.count
  br i1 %more.switches, label %switch, label %found

switch:
  %switch.pair = mul i64 %k, 2
  %reader.at = getelementptr ptr, ptr %switches, i64 %switch.pair
  %value.at = getelementptr ptr, ptr %reader.at, i64 1
  %reader = load ptr, ptr %reader.at
  %value = load ptr, ptr %value.at
  %now = call ptr %vectorcall(ptr %reader, ptr null, i64 0, ptr null)
  %is.told = icmp ne ptr %now, null
  br i1 %is.told, label %told, label %failed

told:
  call void %decref(ptr %now)
  %is.same = icmp eq ptr %now, %value
  %k.next = add i64 %k, 1
  br i1 %is.same, label %switch.head, label %none

failed:
  %error.clear = FIELD ptr context.error_clear, %context
  call void %error.clear()
  ret ptr null

found:
  ret ptr %replay

none:
  ret ptr null
}

define internal i64 @launch_graph(ptr %context, ptr %frame, ptr %call) #{rare} {
entry:
  %replay = FIELD ptr graph.replay, %call
  %executable = FIELD ptr replay.executable, %replay
  %stream = FIELD ptr replay.stream, %replay
  %patches = FIELD ptr replay.patches, %replay
  %count = FIELD i64 replay.patch_count, %replay
  br label %head

head:
  %i = phi i64 [ 0, %entry ], [ %i.next, %next ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %each, label %go

each:
  %patch.bytes = mul i64 %i, {size.patch}
  %patch = getelementptr i8, ptr %patches, i64 %patch.bytes
  %is.changed = call i1 @update_node(ptr %frame, ptr %patch)
  %i.next = add i64 %i, 1
  br i1 %is.changed, label %set, label %next

next:
  br label %head

set:
  %kind = FIELD i64 patch.kind, %patch
  %node = FIELD ptr patch.node, %patch
  %params = FIELD ptr patch.params, %patch
  %is.copy = icmp eq i64 %kind, {node.copy}
  br i1 %is.copy, label %copy, label %kernel

copy:
  %owner = FIELD ptr patch.owner, %patch
  %set.copy = FIELD ptr context.set_copy_node, %context
  %copy.code = call i32 %set.copy(ptr %executable, ptr %node, ptr %params, ptr %owner)
  br label %judge

kernel:
  %set.kernel = FIELD ptr context.set_kernel_node, %context
  %kernel.code = call i32 %set.kernel(ptr %executable, ptr %node, ptr %params)
  br label %judge

judge:
  %code = phi i32 [ %copy.code, %copy ], [ %kernel.code, %kernel ]
  %is.set = icmp eq i32 %code, 0
  br i1 %is.set, label %next, label %broken

go:
  %launch = FIELD ptr context.launch_graph, %context
  %launch.code = call i32 %launch(ptr %executable, ptr %stream)
  %is.launched = icmp eq i32 %launch.code, 0
  br i1 %is.launched, label %count.it, label %broken

count.it:
  %tally = FIELD ptr replay.tally, %replay
  %total = load i64, ptr %tally
  %total.now = add i64 %total, 1
  store i64 %total.now, ptr %tally
  STORE i64 %total.now, replay.used, %replay
  ret i64 0

broken:                                   ; its nodes are not what the words say: never again
  %nowhere = inttoptr i64 -1 to ptr
  STORE ptr %nowhere, replay.stream, %replay
  ret i64 1
}

; This call's addresses and numbers into the words of a node; whether one has changed.
define internal i1 @update_node(ptr %frame, ptr %patch) #{rare} {
entry:
  %sites = FIELD ptr patch.sites, %patch
  %count = FIELD i64 patch.site_count, %patch
  br label %head

head:
  %i = phi i64 [ 0, %entry ], [ %i.next, %write ]
  %changed = phi i1 [ false, %entry ], [ %changed.next, %write ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %each, label %done

each:
  %site.bytes = mul i64 %i, {size.site}
  %site = getelementptr i8, ptr %sites, i64 %site.bytes
  %at = FIELD ptr site.at, %site
  %slot = FIELD i64 site.slot, %site
  %bytes = FIELD i64 site.bytes, %site
  %width = FIELD i64 site.width, %site
  %pointer.at = call ptr @pointer_at(ptr %frame, i64 %slot)
  %pointer = load ptr, ptr %pointer.at
  %is.number = icmp ne i64 %width, 0
  br i1 %is.number, label %digit, label %address

address:
  %moved = getelementptr i8, ptr %pointer, i64 %bytes
  %moved.word = ptrtoint ptr %moved to i64
  br label %write

digit:                                    ; no more bytes are read than there are
  %k = phi i64 [ 0, %each ], [ %k.next, %digit ]
  %number = phi i64 [ 0, %each ], [ %number.next, %digit ]
  %byte.at = getelementptr i8, ptr %pointer, i64 %k
  %byte = load i8, ptr %byte.at
  %wide = zext i8 %byte to i64
  %bits = mul i64 %k, 8
  %shifted = shl i64 %wide, %bits
  %number.next = or i64 %number, %shifted
  %k.next = add i64 %k, 1
  %more.digits = icmp slt i64 %k.next, %width
  br i1 %more.digits, label %digit, label %write

write:
  %word = phi i64 [ %moved.word, %address ], [ %number.next, %digit ]
  %old = load i64, ptr %at
  store i64 %word, ptr %at
  %is.other = icmp ne i64 %word, %old
  %changed.next = or i1 %changed, %is.other
  %i.next = add i64 %i, 1
  br label %head

done:
  ret i1 %changed
}
"""
