"""torch.compile around Preheat: its frame evaluation leaves our calls, and all that they call, alone.

    torch.compile(preheat.compile(model))(x)     runs what Preheat compiled
    @torch.compile
    def outer(x): return compiled(x) + 1         torch.compile's graph ends before the call and
                                                 goes on after it

Said once, when a function is made, and costs a call nothing. The hook is of torch's C extension; in
a torch without it, torch.compile looks into our frames as into any others.
"""

import types

import torch

from preheat.base.marks import set_disabled_for_torch

_HOOKS = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
_IS_THERE = all(
    hasattr(_HOOKS, name) for name in ("set_code_exec_strategy", "_FrameExecStrategy", "_FrameAction")
)


def step_over(function: types.FunctionType, *, is_opaque: bool = False) -> None:
    """torch.compile runs `function`, and what it calls, as plain Python. With `is_opaque` it does
    not look into a call of it either."""
    if _IS_THERE:
        skip = _HOOKS._FrameAction.SKIP
        _HOOKS.set_code_exec_strategy(function.__code__, _HOOKS._FrameExecStrategy(skip, skip))
    if is_opaque:
        set_disabled_for_torch(function)
