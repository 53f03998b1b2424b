"""Parts of a graph that are alike: what was found of them before it was lowered, for the plan made after.

    p0 -= 0.1 * g0; p1 -= 0.1 * g1; ..; p199 -= 0.1 * g199
      graph   all of it
      few     p0 -= 0.1 * g0
      copies  p0, g0: as p1, g1; ..; as p199, g199

A plan of `few` becomes one of `graph` when each call on the inputs of a model is repeated on those of
its copies (`schedule/copies.py`).
"""

from preheat.base.dataclass import dataclass
from preheat.ir.graph import Graph


@dataclass(frozen=True, slots=True)
class Copies:
    """One part that stands for others.

    model    its inputs: places in those of `few`, in the order in which its ops meet them
    others   of each part that is left out, the inputs that it has in their stead: places in those of `graph`
    elems    of each of them, how many elements all its tensors with axes have; 0 where sizes, too, are the model's
    """

    model: tuple[int, ...]
    others: tuple[tuple[int, ...], ...]
    elems: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Alike:
    """`graph`, the same with `few` of the parts that are alike, and what the others are copies of.

    places   of each input of `few`, its place among those of `graph`
    parts    of each input of `few` that one part alone has, the number of that part
    """

    graph: Graph
    few: Graph
    places: tuple[int, ...]
    parts: dict[int, int]
    copies: tuple[Copies, ...]
