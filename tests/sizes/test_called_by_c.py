"""What C asks of the elements of a container by a function that it is given (`map(len, xs)`) hangs on their sizes."""

import functools
import itertools
import operator

import pytest
import torch

import preheat
from tests.sizes.check import differs

SIZES = (5, 8, 3, 7, 2, 9, 4)


def later(xs):
    """C takes what was not there when the map was made."""
    kept = []
    lengths = map(len, kept)
    kept.extend(xs)
    return list(lengths)


def in_place(xs):
    xs = list(xs)
    xs.sort(key=len)
    return [x * 2 for x in xs]


OF_LISTS = {
    "sum of lengths": lambda xs: sum(map(len, xs)),
    "list of lengths": lambda xs: list(map(len, xs)),
    "largest length": lambda xs: max(map(len, xs)) + min(map(len, xs)),
    "lengths in order": lambda xs: sorted(map(len, xs)),
    "mean": lambda xs: sum(x.sum() for x in xs) / sum(map(len, xs)),
    "tensor of lengths": lambda xs: torch.tensor(list(map(len, xs))) * 1.0,
    "loop": lambda xs: [x * n for x, n in zip(xs, map(len, xs))],
    "loop over a map": lambda xs: [n + 1 for n in map(len, xs)],
    "numbered": lambda xs: [i * n for i, n in enumerate(map(len, xs))],
    "a slice": lambda xs: list(map(len, xs[0:])),
    "any": lambda xs: any(map(len, xs)),
    "later": later,
    "sorted": lambda xs: [x * 2 for x in sorted(xs, key=len)],
    "in reverse": lambda xs: [x * 2 for x in sorted(xs, key=len, reverse=True)],
    "list.sort": in_place,
    "max": lambda xs: max(xs, key=len) * 2,
    "min": lambda xs: min(xs, key=len) * 2,
    "max of arguments": lambda xs: max(*xs, key=len) * 2,
    "by shape": lambda xs: max(xs, key=operator.attrgetter("shape")) * 2,
    "by a method": lambda xs: max(xs, key=operator.methodcaller("size", 0)) * 2,
    "by numel": lambda xs: max(xs, key=torch.numel) * 2,
    "by a partial": lambda xs: max(xs, key=functools.partial(len)) * 2,
    "by __len__": lambda xs: max(xs, key=torch.Tensor.__len__) * 2,
    "groupby": lambda xs: [(k, len(list(group))) for k, group in itertools.groupby(xs, key=len)],
    "starmap": lambda xs: list(itertools.starmap(len, zip(xs))),
    "accumulate": lambda xs: list(itertools.accumulate(map(len, xs), max)),
    "takewhile": lambda xs: len(list(itertools.takewhile(len, xs))),
    "filter": lambda xs: [x * 2 for x in filter(len, xs)],
    "sorted pairs": lambda xs: [i for _, i in sorted(zip(map(len, xs), range(2)))],
    "map of lists": lambda xs: [len(x) for x in map(list, xs)],
    "shapes": lambda xs: list(map(operator.attrgetter("shape"), xs)),
    "items": lambda xs: list(map(operator.itemgetter(0), xs)),
    "reduce": lambda xs: functools.reduce(operator.add, map(len, xs)),
    "lengths in a set": lambda xs: len(set(map(len, xs))),
    "lengths by place": lambda xs: dict(zip("ab", map(len, xs))),
}


@pytest.mark.parametrize("name", OF_LISTS)
@pytest.mark.parametrize("kind", (list, tuple))
def test_what_c_is_given_to_call_sees_the_present_sizes(name, kind):
    program = OF_LISTS[name]
    compiled = preheat.compile(program, options={"cache": False})
    for n in SIZES:
        xs = kind([torch.arange(1.0, n + 1), torch.arange(4.0)])
        assert not differs(compiled(xs), program(xs), is_exact=True), n
