"""Recurrent networks of cuDNN as the recorder keeps them: operators of ours, see `bridge/recurrent.py`.

    aten.empty([0])  aten.set_(%5, storage)  aten._cudnn_rnn(%0, [%1, ..], 4, %5, ..)
    ->    preheat.recurrent(%0, [%1, ..], 4, ..)
"""

from typing import Any

from preheat.bridge.ops import overload
from preheat.bridge.overloads import Overload, facts_of

FORWARD, BACKWARD = "preheat.recurrent.default", "preheat.recurrent_backward.default"
RECURRENT = frozenset(("aten._cudnn_rnn.default", "aten._cudnn_rnn_backward.default"))


def translated(facts: Overload, args: tuple, out: Any) -> tuple[Overload, tuple, dict, Any] | None:
    """The call of our operator, with its results, that a call of `RECURRENT` stands for. None for one that drops
    out: its random numbers are kept by cuDNN, and no generator of torch knows them."""
    if facts.name == "aten._cudnn_rnn.default":
        start, (hx, cx), tail, batches = args[:3], args[4:6], args[6:14], args[14]
        dropout, train = tail[5:7]
        if dropout and train:
            return None
        return facts_of(overload(FORWARD)), (*start, hx, cx, *tail, batches), {}, tuple(out[:4])
    start, middle, end = args[:3], args[4:19], args[20:]
    return facts_of(overload(BACKWARD)), (*start, *middle, *end), {}, [*out[:3], *out[3]]
