"""`torch.utils.checkpoint.checkpoint`, as the machine runs it: a polyfill, see `regions.py`."""

from typing import Any

from preheat.bridge.checkpoints import close_checkpoint, open_checkpoint


def checkpointed(*args: Any, **kwargs: Any) -> Any:
    """`torch.utils.checkpoint.checkpoint`, whose function is interpreted."""
    function, arguments, named, region = open_checkpoint(args, kwargs)
    if region is None:
        return function(*arguments, **named)
    try:
        result = function(*arguments, **named)
    except BaseException as error:
        close_checkpoint(region, error)
        raise
    close_checkpoint(region, None)
    return result
