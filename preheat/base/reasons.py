"""Every reason why a call is not one graph, in one table: what happened, what it costs, what to do.

    explain("host_call", "time.time")  ->  ("calls time.time, whose result ...", "call it ...")
    kind_of("host_call", goes_on=True) ->  "host", a row of KINDS, which says what it costs

`{detail}` stands for the values of the one case. `before` breaks with its reason and `after` does
not: both are whole programs that the tests run, with `x` a float tensor of four elements, and the
page docs/breaks.md shows them (`preheat doctor --reasons` prints it). A row that nothing
raises is an error (tests), and so is a reason that is raised without a row here or in `fallbacks`.
"""

from preheat.base.kinds import Reason

REASONS: dict[str, Reason] = {
    # -------------------------------------------------------------- tensors
    "own_gradient": Reason(
        "uses an operator with a gradient of its own, which runs out of sight ({detail})",
        "write its forward in PyTorch's operators, or call it outside the compiled function",
        "eager",
        """
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2

twice = torch.library.custom_op(
    "preheat_example::twice", double, mutates_args=())
twice.register_autograd(lambda ctx, grad: grad * 2)

def step(x):
    return twice(x) + 1

step(torch.ones(4, requires_grad=True))
""",
        """
def step(x):
    return x * 2 + 1

step(torch.ones(4, requires_grad=True))
""",
    ),
    "modified_saved": Reason(
        "changes in place a tensor that a backward may need, which then raises ({detail})",
        "write the result to a new tensor, such as y = y + 1 for y.add_(1)",
        "eager",
        """
def step(x):
    y = x.exp()
    y.add_(1)
    return y

step(torch.ones(4, requires_grad=True))
""",
        """
def step(x):
    y = x.exp()
    return y + 1

step(torch.ones(4, requires_grad=True))
""",
    ),
    "data_dependent_branch": Reason(
        "decides something by the value of a tensor ({detail})",
        "express the choice as tensor arithmetic, such as torch.where",
        "path",
        """
def step(x):
    y = x
    for _ in range(20):
        y = torch.tanh(y)
    if y.max() > 0.5:
        y = y * 2
    return y

step(x)
""",
        """
def step(x):
    y = x
    for _ in range(20):
        y = torch.tanh(y)
    y = torch.where(y.max() > 0.5, y * 2, y)
    return y

step(x)
""",
    ),
    "data_dependent_number": Reason(
        "turns the value of a tensor into a Python number ({detail})",
        "keep the value a tensor, or compute the number outside the compiled function",
        "path",
        """
def step(x):
    scale = x.abs().max().item()
    return x / scale

step(x)
""",
        """
def step(x):
    scale = x.abs().max()
    return x / scale

step(x)
""",
    ),
    "data_dependent_shape": Reason(
        "makes a tensor whose size depends on values ({detail})",
        "use a form with a fixed size, such as torch.where or a mask",
        "path",
        """
def step(x):
    return x[x > 0].sum()

step(x)
""",
        """
def step(x):
    return torch.where(x > 0, x, 0).sum()

step(x)
""",
    ),
    "new_leaf": Reason(
        "makes a tensor that gradients end in ({detail})",
        "make it before the call and pass it in",
        "host",
        """
def step(x):
    w = torch.zeros(4, requires_grad=True)
    return (x * w).sum(), w

step(x)
""",
        """
def step(x, w):
    return (x * w).sum()

step(x, torch.zeros(4, requires_grad=True))
""",
    ),
    "tensor_escape": Reason(
        "hands the memory or the values of a tensor to something that is not an op ({detail})",
        "move the conversion out of the compiled function",
        "host",
        """
def step(x):
    y = x * 2
    return y, y.sum().tolist()

step(x)
""",
        """
def step(x):
    y = x * 2
    return y, y.sum()

y, total = step(x)
total = total.tolist()
""",
    ),
    "tensor_subclass": Reason(
        "uses a tensor that is not plain and dense ({detail})",
        "convert it to a plain tensor before the call",
        "eager",
        """
def step(x):
    return x * 2

step(x.to_sparse())
""",
        """
def step(x):
    return x * 2

step(x.to_sparse().to_dense())
""",
    ),
    "untracked_tensor": Reason(
        "uses a tensor that no recorded op made and no argument or attribute leads to ({detail})",
        "make the tensor with torch ops, or pass it as an argument",
    ),
    "metadata_write": Reason(
        "changes the sizes, strides or storage of an existing tensor ({detail})",
        "use the form of the op that returns a new tensor",
        "host",
        """
def step(x):
    return x.unsqueeze_(0)

step(x)
""",
        """
def step(x):
    return x.unsqueeze(0)

step(x)
""",
    ),
    "overlapping_write": Reason(
        "writes to memory that the same op reads in another order ({detail})",
        "clone the operand that is read",
    ),
    "op_argument": Reason(
        "calls an op with an argument that a trace cannot hold ({detail})",
        "pass plain numbers, dtypes and tensors to ops",
    ),
    # -------------------------------------------------------------- effects
    "write_outside": Reason(
        "changes an object outside the call by a method whose result it depends on ({detail})",
        "return the new value and store it in the caller",
        "host",
        """
waiting = [1, 2]
def step(x):
    waiting.pop()
    return x * 2

step(x)
""",
        """
waiting = [1, 2]
def step(x):
    return x * 2

waiting.pop()
step(x)
""",
    ),
    "marked_size": Reason(
        "needs one value of a size that is marked to change ({detail})",
        "take the mark away, or write the program so that it holds for all sizes"),
    "own_write_read": Reason(
        "reads what it has just written ({detail})",
        "use the value that was written instead of reading it back",
        "write",
        """
seen = []
def step(x):
    seen.append(x * 2)
    return len(seen)

step(x)
""",
        """
seen = []
def step(x):
    count = len(seen) + 1
    seen.append(x * 2)
    return count

step(x)
""",
    ),
    "own_write": Reason(
        "changes what it has read, so its guards do not hold when it ends ({detail})",
        "move the change out of the compiled function"),
    "no_snapshot": Reason(
        "is at a place from which no later call can go on ({detail})",
        "move the call out of the class body, or of what C calls back"),
    "host_raised": Reason(
        "lets an op fail by what its tensors hold, or a function end the program ({detail})",
        "test for the failure before the call",
        "eager",
        """
def step(x):
    try:
        return x.index_select(0, torch.tensor([99]))
    except IndexError:
        return x * 2

step(x)
""",
        """
def step(x, index):
    return x * 2 if index >= len(x) else x[index]

step(x, 99)
""",
    ),
    "raises": Reason(
        "ends in an error again and again before it is compiled ({detail})",
        "test for the failure before the call; preheat.reset() has it tried anew"),
    "limit_nodes": Reason(
        "is cut into more pieces than the limit ({detail})",
        "keep loops that call the outside out of the compiled function, or raise "
        "options={'node_limit': n}",
        "limit",
    ),
    "ambient_change": Reason(
        "leaves torch's state changed ({detail})",
        "make the change outside the compiled function",
        "eager",
        """
import sys
def step(x):
    sys.setrecursionlimit(sys.getrecursionlimit() + 1)
    return x * 2

step(x)
""",
        """
import sys
def step(x):
    return x * 2

sys.setrecursionlimit(sys.getrecursionlimit() + 1)
step(x)
""",
    ),
    "inference_mode_inside": Reason(
        "enters or leaves inference mode inside the call",
        "enter torch.inference_mode() around the call",
        "eager",
        """
def step(x):
    with torch.inference_mode():
        return x * 2

step(x)
""",
        """
def step(x):
    return x * 2

with torch.inference_mode():
    step(x)
""",
    ),
    "host_call": Reason(
        "calls {detail}, whose result or effect no graph holds",
        "call it outside the compiled function and pass its result in",
        "host",
        """
import time
def step(x):
    y = x * 2
    return y, time.time()

step(x)
""",
        """
import time
def step(x):
    return x * 2

step(x), time.time()
""",
    ),
    "backward": Reason(
        "runs a backward, which is the work of autograd's engine ({detail})",
        "nothing: the step is two graphs around its backward, which is compiled apart; where "
        "fullgraph is asked for, compile the forward and the optimizer's step on their own",
        "host",
        """
w = torch.ones(4, requires_grad=True)
def step(x):
    loss = (x * w).sum()
    loss.backward()
    return loss

step(x)
""",
        """
w = torch.ones(4, requires_grad=True)
def step(x):
    return (x * w).sum()

step(x).backward()
""",
    ),
    "disabled_function": Reason(
        "calls {detail}, which is marked as not to be compiled, or compiled by torch.compile",
        "remove the mark, or call the function outside",
        "host",
        """
@preheat.disable
def log(x):
    return x

def step(x):
    return log(x * 2)

step(x)
""",
        """
@preheat.disable
def log(x):
    return x

def step(x):
    return x * 2

log(step(x))
""",
    ),
    "autograd_function": Reason(
        "applies {detail}, a torch.autograd.Function, whose halves are Python of the program's own",
        "nothing, if it must have them: the call goes on compiled behind it; else PyTorch's operators, "
        "whose gradients are compiled too",
        "host",
        """
class Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, grad):
        return grad

def step(x):
    return Round.apply(x * 2) + 1

step(x)
""",
        """
def step(x):
    y = x * 2
    return y + (y.round() - y).detach() + 1

step(x)
""",
    ),
    "checkpoint": Reason(
        "calls a checkpoint that is no region of a graph ({detail})",
        "use_reentrant=False, without contexts and settings of its own, and a function whose only effect "
        "is its result",
        "host",
        """
from torch.utils.checkpoint import checkpoint
w = torch.ones(4, requires_grad=True)
def step(x):
    return checkpoint(lambda x: (x * w).exp(), x, use_reentrant=True)

step(x)
""",
        """
from torch.utils.checkpoint import checkpoint
w = torch.ones(4, requires_grad=True)
def step(x):
    return checkpoint(lambda x: (x * w).exp(), x, use_reentrant=False)

step(x)
""",
    ),
    "impure_region": Reason(
        "checkpoints a function that does more than give tensors ({detail})",
        "nothing: from the next call on the checkpoint is a host step; or keep its effects outside",
    ),
    "native_python": Reason(
        "calls {detail}, a kind of Python function that is not interpreted",
        "call it outside the compiled function",
        "host",
        """
async def later():
    return 1

def step(x):
    later().close()
    return x * 2

step(x)
""",
        """
async def later():
    return 1

def step(x):
    return x * 2

later().close()
step(x)
""",
    ),
    # -------------------------------------------------------------- objects
    "opaque_argument": Reason(
        "lets C code look at an object whose reads cannot be seen ({detail})",
        "convert the object to plain numbers, lists or dicts first",
        "host",
        """
class Name:
    def __str__(self):
        return "name"

def step(x, name):
    return x * len("%s" % name)

step(x, Name())
""",
        """
class Name:
    def __str__(self):
        return "name"

def step(x, name):
    return x * len("%s" % name)

step(x, str(Name()))
""",
    ),
    "outside_iterator": Reason(
        "advances an iterator that existed before the call ({detail})",
        "pass a list, or make the iterator inside",
        "host",
        """
def step(x, numbers):
    return x * next(numbers)

step(x, iter([1, 2, 3]))
""",
        """
def step(x, numbers):
    return x * next(iter(numbers))

step(x, [1, 2, 3])
""",
    ),
    "list_length": Reason(
        "looks at all of a list whose length has been another one in each of three calls ({detail})",
        "pass one tensor, or lists of few lengths",
        "host"),
    "changing_key": Reason(
        "takes an item by a number, or a text made of one, that has been another one in each of three calls ({detail})",
        "take it outside and pass it, or stack what is in the list to one tensor",
        "host"),
    "changing_loop": Reason(
        "turns a loop as often as a number says that has been another one in each of three calls ({detail})",
        "nothing: its body is compiled once for all numbers; or ask for a graph of each by fullgraph=True",
        "path"),
    "foreign_state": Reason(
        "runs where Preheat cannot watch ({detail})",
        "call it without that state",
    ),
    "no_recipe": Reason(
        "returns an object that cannot be rebuilt ({detail})",
        "return tensors, numbers, containers or dataclasses of them",
        "eager",
        """
def step(x):
    return (x * i for i in range(3))

step(x)
""",
        """
def step(x):
    return [x * i for i in range(3)]

step(x)
""",
    ),
    # -------------------------------------------------------------- faults of our own
    "fault": Reason(
        "met a fault of Preheat's own while it was watched ({detail})",
        "please report it with the program",
    ),
    "internal_error": Reason(
        "could not be compiled because of a fault of Preheat's own ({detail})",
        "run with PREHEAT_STRICT=1, which shows where, and report it",
    ),
    # -------------------------------------------------------------- limits
    "limit_ops": Reason(
        "runs more ops than the limit ({detail})", "raise max_ops, or compile a part of it"),
    "bytecodes": Reason(
        "runs more bytecodes than the limit ({detail})",
        "raise max_bytecodes, or compile a part of it"),
    "limit_guards": Reason(
        "reads more outside state than the limit ({detail})", "compile a part of it"),
    "recompile_limit": Reason(
        "needs more variants than the limit ({detail})",
        "keep what changes the same, pass it as a tensor, or raise "
        "options={'recompile_limit': n}",
        "limit",
    ),
}


def explain(reason: str, detail: str) -> tuple[str, str]:
    """The sentence and the hint of one case."""
    row = REASONS[reason]
    return row.sentence.format(detail=detail), row.hint


def kind_of(reason: str, goes_on: bool = False) -> str:
    """What a break costs, as a row of `KINDS`: its reason's kind where the graph goes on after it
    (a host step, if it mostly does not), else an eager part. A limit is one either way."""
    kind = REASONS[reason].kind if reason in REASONS else "eager"
    if goes_on:
        return "host" if kind == "eager" else kind
    return kind if kind == "limit" else "eager"


def whole_message(
    name: str, reason: str, detail: str, file: str, line: int, code: str, hint: str,
) -> str:
    """What `fullgraph=True` says of a call of `name` that is not one graph."""
    sentence = explain(reason, detail)[0] if reason in REASONS else f"breaks: {detail}"
    place = f"{file}:{line}" if file else name
    shown = f"\n    {code.strip()}" if code else ""
    return (
        f"fullgraph=True, but {name} is not one graph: {place} {sentence} [{reason}]{shown}\n"
        f"{hint}")
