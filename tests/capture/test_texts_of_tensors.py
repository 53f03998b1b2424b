"""Text of what holds tensors, made by C, is that of the present call; so is what C makes of its elements."""

import collections
import io
import operator
import types

import pytest
import torch

import preheat

SHOWN = {
    "dict in an f-string": lambda x: f"{ {'loss': x.mean()} }",
    "list": lambda x: str([x[0], x * 2]),
    "repr": lambda x: repr((x.sum(), 1)),
    "ascii": lambda x: ascii([x]),
    "format": lambda x: format([x]),
    "percent": lambda x: "%s and %s" % ([x], 1),
    "percent of a dict": lambda x: "%(loss)s" % {"loss": [x]},
    "bytes": lambda x: b"%a" % ([x],),
    "in place": lambda x: operator.imod("%s", ([x],)),
    "str.format": lambda x: "{} {a}".format([x], a=(x,)),
    "str.format of a tensor": lambda x: "{}".format(x),
    "format_map": lambda x: "{a}".format_map({"a": [x]}),
    "str.__mod__": lambda x: str.__mod__("%s", ([x],)),
    "list.__repr__": lambda x: list.__repr__([x]) + [x].__str__() + [x].__format__(""),
    "set": lambda x: str({x}),
    "nested": lambda x: str([{"a": ([x],)}]),
    "deque": lambda x: str(collections.deque([x])),
    "views": lambda x: f"{ {'a': x}.values()} { {'a': x}.items()}",
    "exception": lambda x: str(ValueError(x)) + repr(KeyError([x])),
    "slice": lambda x: str(slice(x)),
    "alias": lambda x: str(types.GenericAlias(list, (x,))),
    "join": lambda x: ",".join(map(str, x)),
    "join of a generator": lambda x: ",".join(str(v) for v in x),
    "map": lambda x: list(map(repr, x)),
    "map of a format": lambda x: list(map("{}".format, x)),
    "map with %": lambda x: list(map("%s".__mod__, x)),
    "loop over a map": lambda x: [v + "!" for v in map(str, x)],
    "zip of a map": lambda x: list(zip(map(str, x), range(9))),
    "map of what comes later": lambda x: (lambda xs: (lambda m: (xs.append(x), list(m))[1])(map(str, xs)))([]),
    "sorted": lambda x: len(sorted(x, key=str)) and [str(v) for v in sorted(x, key=str)],
    "filter": lambda x: len(list(filter(str, x))),
}


@pytest.mark.parametrize("name", SHOWN)
def test_a_text_is_of_the_present_call(name):
    program = SHOWN[name]
    compiled = preheat.compile(program, options={"cache": False})
    for k in range(4):
        x = torch.tensor([1.0 + k, 3.0 - k])
        assert compiled(x) == program(x)


OUTSIDE = {
    "list": str, "f-string": lambda xs: f"{xs}", "tuple": lambda xs: str(tuple(xs)), "dict": lambda xs: str({"a": xs}),
    "percent": lambda xs: "%s" % (xs,), "join": lambda xs: " ".join(map(str, xs)), "map": lambda xs: list(map(repr, xs)),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_text_of_a_list_from_outside_is_of_the_present_call(name):
    program = OUTSIDE[name]
    compiled = preheat.compile(lambda xs: program(xs), options={"cache": False})
    for k in (2, 2, 3, 4, 5, 4):
        xs = [torch.arange(k) + k, torch.full((2,), k)]
        assert compiled(xs) == program(xs)


def test_what_is_printed_of_a_list_is_of_the_present_call(capsys):
    def program(x):
        print(f"metrics {[x.mean()]}")
        return x * 2

    compiled = preheat.compile(program, options={"cache": False})
    for k in range(3):
        assert torch.equal(compiled(torch.full((2,), float(k))), torch.full((2,), 2.0 * k))
    assert capsys.readouterr().out == "".join(f"metrics [tensor({k}.)]\n" for k in range(3))


def test_a_text_of_tensors_is_no_second_capture():
    stream = io.StringIO()

    def program(x):
        stream.write(f"{ {'loss': x.mean()} }\n")
        return x * 2

    compiled = preheat.compile(program, options={"cache": False})
    for k in range(2):
        compiled(torch.full((2,), float(k)))
    before = preheat.counters()
    for k in range(3):
        compiled(torch.full((2,), float(k)))
    after = preheat.counters()
    assert (after["captures"], after["interpreted"]) == (before["captures"], before["interpreted"])
