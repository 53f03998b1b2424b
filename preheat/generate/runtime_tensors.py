"""The driver's text for tensors: what comes in, what is made, where its memory is.

    @take_inputs    objects of a call into their slots, with data pointers
    @make_outputs   fresh tensors into their slots;  @make_tensor  one of them
    @make_view      another tensor on the memory of one, for library calls;  @make_lens  one that stays
    @keep_handle    a handle that torch made becomes the object of a slot, if its layout fits

Notation: `runtime_text`. Requires the GIL, except for @data_pointer. Guarantees: a slot that got an
object owns one reference to it, inputs excepted.
"""

from preheat.generate.runtime_text import each_word

TENSORS_TEXT = """
define internal i64 @take_inputs(ptr %context, ptr %program, ptr %frame, ptr %args) #{inline} {
entry:
  %inputs = FIELD ptr program.inputs, %program
  %count = FIELD i64 program.input_count, %program
  %tensor.offset = FIELD i64 context.tensor_offset, %context
  %objects = call ptr @objects_of(ptr %program, ptr %frame)
  %words = FIELD ptr program.words, %program
  %word.count = FIELD i64 program.word_count, %program
  br label %word.head                     ; another call may leave its own as soon as Python runs
""" + each_word("word", "entry", "inner", """\
  %word.slot = FIELD i64 number.slot, %word.record
  %left = load i64, ptr %word.cell
  %word.at = getelementptr i64, ptr %objects, i64 %word.slot
  store i64 %left, ptr %word.at
  %word.pointer.at = call ptr @pointer_at(ptr %frame, i64 %word.slot)
  store ptr %word.at, ptr %word.pointer.at""") + """
inner:
  %deep = FIELD ptr program.deep, %program
  %takes = FIELD i64 program.takes_inputs, %program
  %is.taker = icmp ne i64 %takes, 0
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
  %inside = phi ptr [ null, %inner ], [ %dug, %dig ]
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
    i64 {origin.member}, label %member
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

member:
  %pair = inttoptr i64 %value to ptr
  %owner = load ptr, ptr %pair
  %name.at = getelementptr ptr, ptr %pair, i64 1
  %name = load ptr, ptr %name.at
  %get.attribute = FIELD ptr context.get_attribute, %context
  %attribute = call ptr %get.attribute(ptr %owner, ptr %name)      ; the slot owns it
  %is.got = icmp ne ptr %attribute, null
  br i1 %is.got, label %have, label %lost

have:
  %object = phi ptr [ %bound.object, %bound ], [ %arg, %argument ], [ %part, %within ],
      [ %attribute, %member ]
  %slot = FIELD i64 input.slot, %record
  %object.at = getelementptr ptr, ptr %objects, i64 %slot
  store ptr %object, ptr %object.at
  br i1 %is.taker, label %own, label %owned

own:
  %incref = FIELD ptr context.incref, %context
  call void %incref(ptr %object)
  br label %owned

owned:
  %access = FIELD i64 input.access, %record
  %needs.data = icmp ne i64 %access, {access.none}
  br i1 %needs.data, label %data, label %next

data:
  %itemsize = FIELD i64 input.itemsize, %record
  %tensor = getelementptr i8, ptr %object, i64 %tensor.offset
  %pointer.at = call ptr @pointer_at(ptr %frame, i64 %slot)
  %is.write = icmp eq i64 %access, {access.write}
  %code = call i32 @data_pointer(ptr %context, ptr %tensor, i64 %itemsize, i1 %is.write,
      ptr %pointer.at)
  %is.fine = icmp eq i32 %code, 0
  br i1 %is.fine, label %next, label %faulted

next:
  %i.next = add i64 %i, 1
  br label %head

done:
  br i1 %is.taker, label %empty, label %ready

empty:                                    ; what gave the inputs does not hold them any longer
  %decref = FIELD ptr context.decref, %context
  STORE ptr null, frame.deep, %frame
  call void %decref(ptr %inside)
  br label %ready

ready:
  ret i64 0

faulted:
  ret i64 1

lost:
  %judged = call i64 @judge(ptr %context)
  ret i64 %judged
}

; Stores the address of the first element of the at::Tensor at `tensor`; 0, or torch's error code.
; Memory that will be written is asked of torch, which ends a sharing of lazy copies first.
define internal i32 @data_pointer(ptr %context, ptr %tensor, i64 %itemsize, i1 %is.write,
    ptr %out) #{inline} {
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

define internal i64 @make_outputs(ptr %context, ptr %program, ptr %frame, ptr %outputs,
    i64 %count) #{inline} {
entry:
  %objects = call ptr @objects_of(ptr %program, ptr %frame)
  br label %head

head:
  %i = phi i64 [ 0, %entry ], [ %i.next, %next ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %make, label %done

make:
  %record.bytes = mul i64 %i, {size.output}
  %record = getelementptr i8, ptr %outputs, i64 %record.bytes
  %status = call i64 @make_tensor(ptr %context, ptr %frame, ptr %objects, ptr %record)
  %is.made = icmp eq i64 %status, 0
  br i1 %is.made, label %next, label %failed

next:
  %i.next = add i64 %i, 1
  br label %head

done:
  ret i64 0

failed:
  ret i64 %status
}

; A fresh tensor by an output record.
define internal i64 @make_tensor(ptr %context, ptr %frame, ptr %objects, ptr %record) #{hot} {
entry:
  %handle.at = alloca ptr
  %slot = FIELD i64 output.slot, %record
  %rank = FIELD i64 output.rank, %record
  %sizes = FIELD ptr output.sizes, %record
  %strides = FIELD ptr output.strides, %record
  %dtype = FIELD i32 output.dtype, %record
  %itemsize = FIELD i64 output.itemsize, %record
  %device = FIELD i32 output.device, %record
  %device.index = FIELD i32 output.device_index, %record
  %empty = FIELD ptr context.empty_strided, %context
  %code = call i32 %empty(i64 %rank, ptr %sizes, ptr %strides, i32 %dtype, i32 %device,
      i32 %device.index, ptr %handle.at)
  %is.made = icmp eq i32 %code, 0            ; out of memory: eager says so better
  br i1 %is.made, label %keep, label %faulted

keep:
  %handle = load ptr, ptr %handle.at
  %status = call i64 @wrap(ptr %context, ptr %frame, ptr %objects, i64 %slot, i64 %itemsize,
      ptr %handle)
  ret i64 %status

faulted:
  ret i64 1
}

; Another tensor on the memory of the one in slot `base`, `elems` further.
define internal i64 @make_view(ptr %context, ptr %frame, ptr %objects, ptr %call) #{rare} {
entry:
  %handle.at = alloca ptr
  %slot = FIELD i64 view.slot, %call
  %base.slot = FIELD i64 view.base, %call
  %rank = FIELD i64 view.rank, %call
  %sizes = FIELD ptr view.sizes, %call
  %strides = FIELD ptr view.strides, %call
  %elems = FIELD i64 view.elems, %call
  %reinterpret = FIELD ptr context.reinterpret, %context
  %tensor.offset = FIELD i64 context.tensor_offset, %context
  %base.at = getelementptr ptr, ptr %objects, i64 %base.slot
  %base = load ptr, ptr %base.at
  %tensor = getelementptr i8, ptr %base, i64 %tensor.offset
  %code = call i32 %reinterpret(ptr %tensor, i64 %rank, ptr %sizes, ptr %strides, i64 %elems,
      ptr %handle.at)
  %is.made = icmp eq i32 %code, 0
  br i1 %is.made, label %keep, label %faulted

keep:                                     ; its data pointer is known from the base's: "offset"
  %handle = load ptr, ptr %handle.at
  %status = call i64 @wrap_only(ptr %context, ptr %objects, i64 %slot, ptr %handle)
  ret i64 %status

faulted:
  ret i64 1
}

; A tensor on memory that somebody else holds as long as the call lasts. It stays in the frame, and is
; made anew when that memory lies elsewhere.
define internal i64 @make_lens(ptr %context, ptr %frame, ptr %objects, ptr %call) #{rare} {
entry:
  %handle.at = alloca ptr
  %record = FIELD ptr lens.output, %call
  %memo = FIELD i64 lens.memo, %call
  %slot = FIELD i64 output.slot, %record
  %pointer.at = call ptr @pointer_at(ptr %frame, i64 %slot)
  %memo.at = call ptr @pointer_at(ptr %frame, i64 %memo)
  %object.at = getelementptr ptr, ptr %objects, i64 %slot
  %pointer = load ptr, ptr %pointer.at
  %known = load ptr, ptr %memo.at
  %old = load ptr, ptr %object.at
  %is.made = icmp ne ptr %old, null
  %is.there = icmp eq ptr %pointer, %known
  %is.right = and i1 %is.made, %is.there
  br i1 %is.right, label %done, label %anew

anew:
  store ptr null, ptr %object.at
  br i1 %is.made, label %drop, label %make

drop:
  %decref = FIELD ptr context.decref, %context
  call void %decref(ptr %old)
  br label %make

make:
  %rank = FIELD i64 output.rank, %record
  %sizes = FIELD ptr output.sizes, %record
  %strides = FIELD ptr output.strides, %record
  %dtype = FIELD i32 output.dtype, %record
  %device = FIELD i32 output.device, %record
  %device.index = FIELD i32 output.device_index, %record
  %from.blob = FIELD ptr context.from_blob, %context
  %code = call i32 %from.blob(ptr %pointer, i64 %rank, ptr %sizes, ptr %strides, i64 0, i32 %dtype,
      i32 %device, i32 %device.index, ptr %handle.at)
  %is.fine = icmp eq i32 %code, 0
  br i1 %is.fine, label %keep, label %faulted

keep:
  %handle = load ptr, ptr %handle.at
  %status = call i64 @wrap_only(ptr %context, ptr %objects, i64 %slot, ptr %handle)
  store ptr %pointer, ptr %memo.at
  ret i64 %status

faulted:
  ret i64 1

done:
  ret i64 0
}

; The handle of a library result into its slot: a fault if its layout is not that of the record.
define internal i64 @keep_handle(ptr %context, ptr %frame, ptr %objects, ptr %record,
    ptr %handle) #{rare} {
entry:
  %slot = FIELD i64 output.slot, %record
  %itemsize = FIELD i64 output.itemsize, %record
  %is.needed = icmp sge i64 %slot, 0
  br i1 %is.needed, label %compare, label %unneeded

unneeded:
  %is.number = icmp eq i64 %slot, {number_slot}
  br i1 %is.number, label %number, label %drop

number:
  ret i64 0

compare:
  %fits = call i1 @has_layout(ptr %context, ptr %record, ptr %handle)
  br i1 %fits, label %keep, label %misfit

keep:
  %status = call i64 @wrap(ptr %context, ptr %frame, ptr %objects, i64 %slot, i64 %itemsize,
      ptr %handle)
  ret i64 %status

misfit:
  br label %drop

drop:
  %code = phi i64 [ 0, %unneeded ], [ 1, %misfit ]
  %delete = FIELD ptr context.delete_tensor, %context
  %deleted = call i32 %delete(ptr %handle)
  ret i64 %code
}

; Whether the tensor of a handle has the sizes and strides of an output record.
define internal i1 @has_layout(ptr %context, ptr %record, ptr %handle) #{rare} {
entry:
  %rank.at = alloca i64
  %sizes.at = alloca ptr
  %strides.at = alloca ptr
  %expected.rank = FIELD i64 output.rank, %record
  %expected.sizes = FIELD ptr output.sizes, %record
  %expected.strides = FIELD ptr output.strides, %record
  %inner = FIELD i64 output.is_inner, %record
  %is.inner = icmp ne i64 %inner, 0
  %get.dim = FIELD ptr context.get_dim, %context
  %get.sizes = FIELD ptr context.get_sizes, %context
  %get.strides = FIELD ptr context.get_strides, %context
  %dim.code = call i32 %get.dim(ptr %handle, ptr %rank.at)
  %sizes.code = call i32 %get.sizes(ptr %handle, ptr %sizes.at)
  %strides.code = call i32 %get.strides(ptr %handle, ptr %strides.at)
  %two = or i32 %dim.code, %sizes.code
  %all = or i32 %two, %strides.code
  %is.told = icmp eq i32 %all, 0
  br i1 %is.told, label %told, label %no

told:
  %rank = load i64, ptr %rank.at
  %sizes = load ptr, ptr %sizes.at
  %strides = load ptr, ptr %strides.at
  %same.rank = icmp eq i64 %rank, %expected.rank
  br i1 %same.rank, label %head, label %no

head:
  %i = phi i64 [ 0, %told ], [ %i.next, %axis ]
  %more = icmp slt i64 %i, %rank
  br i1 %more, label %axis, label %yes

axis:
  %size.at = getelementptr i64, ptr %sizes, i64 %i
  %stride.at = getelementptr i64, ptr %strides, i64 %i
  %expected.size.at = getelementptr i64, ptr %expected.sizes, i64 %i
  %expected.stride.at = getelementptr i64, ptr %expected.strides, i64 %i
  %size = load i64, ptr %size.at
  %stride = load i64, ptr %stride.at
  %expected.size = load i64, ptr %expected.size.at
  %expected.stride = load i64, ptr %expected.stride.at
  %same.size = icmp eq i64 %size, %expected.size
  %same.stride = icmp eq i64 %stride, %expected.stride
  %is.one = icmp eq i64 %size, 1
  %is.free = and i1 %is.one, %is.inner
  %fits.stride = or i1 %same.stride, %is.free
  %same = and i1 %same.size, %fits.stride
  %i.next = add i64 %i, 1
  br i1 %same, label %head, label %no

yes:
  ret i1 true

no:
  ret i1 false
}

; The object of a handle, which ends here, into a slot; with its data pointer.
define internal i64 @wrap(ptr %context, ptr %frame, ptr %objects, i64 %slot, i64 %itemsize,
    ptr %handle) #{inline} {
entry:
  %status = call i64 @wrap_only(ptr %context, ptr %objects, i64 %slot, ptr %handle)
  %is.wrapped = icmp eq i64 %status, 0
  br i1 %is.wrapped, label %data, label %failed

data:
  %object.at = getelementptr ptr, ptr %objects, i64 %slot
  %object = load ptr, ptr %object.at
  %tensor.offset = FIELD i64 context.tensor_offset, %context
  %tensor = getelementptr i8, ptr %object, i64 %tensor.offset
  %pointer.at = call ptr @pointer_at(ptr %frame, i64 %slot)
  %code = call i32 @data_pointer(ptr %context, ptr %tensor, i64 %itemsize, i1 false,
      ptr %pointer.at)
  %is.bad = icmp ne i32 %code, 0
  %bad = zext i1 %is.bad to i64
  ret i64 %bad

failed:
  ret i64 %status
}

define internal i64 @wrap_only(ptr %context, ptr %objects, i64 %slot, ptr %handle) #{inline} {
  %wrap = FIELD ptr context.wrap_tensor, %context
  %delete = FIELD ptr context.delete_tensor, %context
  %object = call ptr %wrap(ptr %handle)
  %deleted = call i32 %delete(ptr %handle)
  %object.at = getelementptr ptr, ptr %objects, i64 %slot
  store ptr %object, ptr %object.at
  %is.null = icmp eq ptr %object, null
  %status = select i1 %is.null, i64 3, i64 0
  ret i64 %status
}
"""
