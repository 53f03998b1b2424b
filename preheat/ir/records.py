"""Records: the tables that the native driver reads, field by field. Every field is one 8-byte word.

    offset("program", "slow") == 8        size("input") == 40

The driver is one piece of machine code for all plans (`generate/runtime_driver.py`); what it does
is in tables that `run/driver.py` fills when a plan is bound. Both sides take the layout from here,
so a word has one name. No address is stored on disk: tables live in the process that made them.

A *slot* is one value of a call: a data pointer and, where Python sees it, a tensor object. The
first slots are the plan's buffers; objects that only the result needs follow.
"""

WORD_BYTES = 8

RECORDS: dict[str, tuple[str, ...]] = {
    # One a process: probed layouts (bytes) and the functions that the driver may call.
    "context": (
        "tensor_offset",  # from a tensor object to its at::Tensor (a pointer to TensorImpl)
        "storage_offset",  # from TensorImpl to its StorageImpl pointer; 0: ask get_data_ptr
        "data_offset",  # from StorageImpl to its data pointer
        "element_offset",  # from TensorImpl to its storage offset, in elements
        "is_forked",  # 1 in a forked child: OpenMP regions would hang there
        "exception_class",  # the object `Exception`
        "get_data_ptr", "empty_strided", "delete_tensor", "wrap_tensor", "reinterpret",
        "from_blob",
        "get_dim", "get_sizes", "get_strides",
        "mkl_set_threads", "gomp_parallel", "omp_max_threads", "omp_thread", "omp_team",
        "save_thread", "restore_thread", "incref", "decref", "tuple_new", "tuple_set", "tuple_get",
        "tuple_size", "vectorcall", "long_from", "long_as", "error_matches",
        "error_clear", "unicode_compare", "get_attribute", "set_grad_mode",
        # of a GPU: 0 until a plan for one is bound. `bind_device`: a callable of no arguments.
        "launch_kernel", "launch_together", "get_stream", "bind_device", "create_guard", "delete_guard",
        "launch_graph", "set_kernel_node", "set_copy_node", "is_capturing",
    ),
    # One an entry.
    "program": (
        "context", "slow", "miss",
        "positional", "keywords", "keyword_names",  # counts, and a tuple (0 without keywords)
        "rows", "row_count",  # for preheat_check
        "frames", "new_frame",  # head of the list of free frames; a callable that makes another one
        "objects_at", "scratch_at",  # offsets within a frame, in bytes
        "deep",  # a callable of the call's objects that yields what lies inside them; 0 without
        "words", "word_count",  # numbers that the check leaves: copied first, as a call may be left
        "inputs", "input_count", "outputs", "output_count", "calls",
        "drops", "drop_count",  # slots whose objects the call owns until its end
        "results", "result_count",  # slots of the values, then of the objects that `rebuild` takes
        "shape", "rebuild",  # see SHAPES
        "is_grad_off",  # 1: grad mode, which is on, is off while the calls run
        "takes_inputs",  # 1: the call owns its inputs, all of which `deep` gives it
        "is_streamed",  # 1: a frame's memory belongs to the stream that its first call came on
        "replays", "device_index",  # where the first recorded graph is (0: there can be none); its GPU
    ),
    # Leased by one call. Followed by a pointer a slot, an object a slot, and scratch.
    # `written` is 1 after a "write" record. `single`: 1 for one that serves one call, 2 after that.
    # `guard`: torch's, while another device is current than outside.
    "frame": ("next", "flag", "written", "thread_state", "deep", "threads", "guard", "stream",
              "single"),
    # A number: where the check leaves its word, and the slot that takes it.
    "number": ("cell", "slot"),
    # One an object that comes from outside. origin: see ORIGINS. access: see ACCESS.
    "input": ("origin", "value", "slot", "access", "itemsize"),
    # One a fresh output tensor. device: torch's number of its type, and which of them it is. is_inner:
    # nobody outside sees it, so strides of axes with one element may be any.
    "output": (
        "slot", "rank", "sizes", "strides", "dtype", "itemsize", "device", "device_index",
        "is_inner"),
    # One step of the plan: `kind` is a row of CALLS, which names the other words.
    "call": ("kind", "a", "b", "c", "d", "e", "f", "g"),
    # Arguments of ?gemm, which takes a pointer to each of these words.
    "gemm": ("left_flag", "right_flag", "m", "n", "k", "alpha", "left_leading", "right_leading",
             "beta", "out_leading", "group_count", "group_size"),
    # How a kernel of a GPU is launched. `words`: of its parameters that the plan has no buffers for. `is_together`: 1
    # where all programs run at once.
    "launch_shape": ("programs", "threads", "shared_bytes", "device_index", "words", "is_together"),
    # A recorded graph that does what the program's calls do, for calls on `stream` of tensors at the
    # `fixed` addresses (pairs of slot and address), while `switches` (pairs of a callable and the
    # object that it gives) are as they were. -1: `stream` of none. `busy`: calls that use it now.
    "replay": ("next", "stream", "executable", "patches", "patch_count", "fixed", "fixed_count",
               "switches", "switch_count", "outputs", "output_count", "calls", "busy", "used", "tally"),
    # A node whose parameters change from call to call; `kind`: a row of NODES.
    "patch": ("kind", "node", "params", "owner", "sites", "site_count"),
    # One word of a node: the pointer of `slot`, `bytes` further; or, where `width` is not 0, the
    # number of so many bytes that the pointer leads to.
    "site": ("at", "slot", "bytes", "width"),
    # What the threads of a region share.
    "team": ("kernel", "arguments", "extent", "context"),
}

# value: the object | its position | its place in `deep` | the addresses of an object and a name
ORIGINS = ("object", "argument", "deep", "member")
ACCESS = ("none", "read", "write")  # whether the data pointer is needed, and may be written
NODES = ("kernel", "copy")  # of a graph: a kernel, a copy of memory
SHAPES = ("value", "tuple", "rebuild")  # the one value, the tuple of values, rebuild(...)

# kind -> the words a, b, c, ... of its call records
CALLS: dict[str, tuple[str, ...]] = {
    "end": (),
    # grain: extents that make a thread worth its start; 0: one thread
    "kernel": ("address", "params", "slots", "extent", "grain"),
    # a kernel of a GPU, on torch's current stream; `shape` is a record "launch_shape"
    "launch": ("function", "params", "slots", "shape"),
    "device": ("index",),  # the current one from here on; -1: again the one outside
    # pointers of `slots` that are not as kernels expect become those of `function(object)`, which goes
    # to the slot of `copies`; a fault if there is no function
    "aligned": ("count", "slots", "copies", "function"),
    "graph": ("replay",),  # all calls of the plan, as a recorded graph
    # a library call that is made once, when `left`, which each call counts down, has become 0
    "notice": ("function", "arguments", "slots", "results", "result_slots", "left"),
    # offsets: three byte offsets a matrix; "products" is one call of ?gemm_batch
    "product": ("routine", "gemm", "left", "right", "out", "batch", "offsets"),
    "products": ("routine", "gemm", "left", "right", "out", "batch", "offsets"),
    "library": ("function", "arguments", "slots", "results", "result_slots"),
    "shim": ("function", "words", "word_count", "doubles", "results", "result_count", "is_long"),
    "make": ("output",),  # a fresh tensor by an output record
    # for library calls only: it has no ._base
    "view": ("slot", "base", "rank", "sizes", "strides", "elems"),
    # the same, without a hold on the memory: made anew only where its pointer is another one than in
    # slot `memo`; the frame keeps it
    "lens": ("output", "memo"),
    "offset": ("slot", "base", "bytes"),  # pointer of slot = pointer of base + bytes
    "free": ("slot",),
    "release": (),  # of the GIL, until "acquire"
    "acquire": (),
    "test": (),  # the error flag: a fault if it is set
    "write": (),  # an input is written from here on: the call cannot be run again
}
CALL_KINDS = tuple(CALLS)

# A C shim of torch takes words (integers and pointers), then doubles. Its `words` are pairs of one
# of these kinds and a value: the word itself | the slot of a tensor | the slot of an optional one |
# where the shim shall store the handle of a result (the last `result_count` words; `results` are
# their output records, with slot -1 for one that is not needed, NUMBER_SLOT for a number, not kept).
NUMBER_SLOT = -2
LAUNCH_ALIGN_BYTES = 16  # of pointers that kernels of a GPU get
SHIM_WORDS = ("word", "tensor", "optional", "result")
SHIM_WORD_LIMIT, SHIM_DOUBLE_LIMIT = 20, 2
REASONS = ("guard", "fault", "late_fault")  # why `slow` is called


def offset(record: str, field: str) -> int:
    """Where `field` of `record` is, in bytes from its start."""
    return RECORDS[record].index(field) * WORD_BYTES


def size(record: str) -> int:
    """The bytes of one `record`."""
    return len(RECORDS[record]) * WORD_BYTES


def call_offset(kind: str, field: str) -> int:
    """Where the word that a call of `kind` names `field` is."""
    return (1 + CALLS[kind].index(field)) * WORD_BYTES
