"""What a second process needs of one compiled variant: the trace to check, the plan to run, the code.

The trace's node is stored without its body: replay needs only guards and recipe. `body` keeps it,
encoded, for `explain` and for the executor that runs graphs op by op.
"""

import hashlib
from dataclasses import replace

from preheat.base.dataclass import dataclass
from preheat.ir.graph import Graph
from preheat.ir.pack import NOTHING, Ahead, decode, encode
from preheat.ir.plan import Image, Plan
from preheat.ir.trace import Trace
from preheat.ir.training import Training


@dataclass(frozen=True, slots=True)
class Artifact:
    """`plan` and `image` are None when the body runs op by op (backend "eager"), or when it is
    differentiable and its backward has not been seen yet (`training` without joints), or when a plan
    waits until the node comes again (`is_waiting`, see `ir/spent.py`). `unseen`: the
    places of the inputs whose versions do not count what the body writes to them."""

    trace: Trace
    plan: Plan | None
    image: Image | None
    body: bytes
    training: Training | None = None
    unseen: tuple[int, ...] = ()
    is_waiting: bool = False

    def graph(self) -> Graph:
        """The recorded graph at level aten."""
        return decode(self.body)


def artifact(
    trace: Trace, plan: Plan | None = None, image: Image | None = None,
    training: Training | None = None,
) -> Artifact:
    """Takes the body out of `trace` and packs it apart."""
    (node,) = trace.nodes
    slim = replace(trace, nodes=(replace(node, body=None),))
    return Artifact(slim, plan, image, encode(node.body), training)


def packed(made: Artifact, ahead: Ahead = NOTHING) -> tuple[str, bytes]:
    """The bytes of an artifact, and a name: that of all that are made of its trace and body, one after
    the other as more is learned. `ahead` has those of some of its nouns."""
    trace = encode(made.trace, ahead)
    name = hashlib.blake2b(trace + made.body, digest_size=16).hexdigest()
    return name, encode((
        trace, made.plan, made.image, made.body, made.training, made.unseen, made.is_waiting), ahead)


def from_bytes(data: bytes) -> Artifact:
    """Raises ValueError when `data` is not an artifact."""
    parts = decode(data)
    if not isinstance(parts, tuple) or len(parts) != 7 or not isinstance(parts[0], bytes):
        raise ValueError("not an artifact")
    trace = decode(parts[0])
    if not isinstance(trace, Trace):
        raise ValueError("not an artifact")
    return Artifact(trace, *parts[1:])
