"""Programs that random ones led to: each the smallest of a fault that is mended, as its whole kind.

They live in the world of `world.py`, are called three times and compared with eager.
"""

import textwrap

import pytest

from fuzz.check import check
from fuzz.grammar import Script

HEAD = "def program(x, y, v, n, flag, items, options, *rest, w=None, **named):\n"

FOUND = {
    "a slice of an outside list is written": """
        w.items.sort()
        w.items[:] = [3, 2, 1]
        w.stash[:] = x
        items[0:1] = [n, n]
        print(w.items)
    """,
    "a slice of an outside list is deleted": """
        w.items.extend([n, 5])
        del w.items[1:]
        del w.items[-1]
        return tuple(w.items)
    """,
    "items of outside containers of other classes are written": """
        w.tally["q"] += 1
        w.queue[0] = n
        order = options.setdefault("order", collections.OrderedDict(a=1))
        order["b"] = w.tally["q"]
        order["x"] = x
        del order["a"]
        order["a"] = 2
        array = options.setdefault("array", numpy.zeros(3))
        array[1] += n
        array[:] = array + 1
        return torch.tensor(array)
    """,
    "an abstract class that a class is registered with later": """
        is_named = isinstance(w.thing, Named), isinstance(w, (int, Named)), issubclass(Thing, Named)
        return x + sum(is_named)
    """,
    "tensors as keys": """
        return x + len({w.tensors[0]: 1, w.tensors[1]: 2}) + len({x, y, w.part.weight})
    """,
    "a base of a class made in the call": """
        class Local(Thing):
            pass
        return Local(2).step(x)
    """,
    "a base of a class made in the call, by super": """
        class Local(Thing):
            def step(self, t):
                return super().step(t) * 2 + super().level + self.level
        return Local(2).step(x)
    """,
    "an op of numbers alone": """
        torch.add(0, n, out=y)
        return torch.add(n, 4) + x, torch.div(7, 2, rounding_mode="floor"), torch.div(n, 2)
    """,
    "numbers that change are subtracted in place": """
        v -= int(v.numpy().max())
        items[0] += 1
        w.tally["c"] += 2
        y.add_(w.thing.step(x).reshape(-1)[4])
    """,
    "an error of an op has the context that eager's has": """
        print("before")
        x += torch.arange(n).float()
    """,
    "an error after the text of a tensor": """
        with Noted(LOG) as noted, str(x + n) as text:
            pass
    """,
    "an error after an attribute of a tensor that no guard covers": """
        with Noted(LOG):
            y.data.add_(n)
            x.grad_fn.missing
    """,
    "what was multiplied by the result of a disabled function is not iterable": """
        for m in (x * opaque(x, [])).clamp:
            pass
    """,
}


# What happens before the third call, where it matters.
CHANGES = {
    "an error of an op has the context that eager's has": "args[3] = 4",
    "an abstract class that a class is registered with later": 'g["Named"].register(g["Thing"])',
    "tensors as keys": "w.tensors[0] = w.tensors[1]",
    "a base of a class made in the call": 'g["Thing"].step = lambda self, t: t - 1',
    "a base of a class made in the call, by super": 'g["Thing"].level = 7',
}


@pytest.mark.parametrize("backend", ["preheat", "eager"])
@pytest.mark.parametrize("name", FOUND)
def test_programs_that_failed(name, backend):
    prelude = "import abc\n\n\nclass Named(abc.ABC):\n    pass\n\n\n"
    text = prelude + HEAD + textwrap.indent(textwrap.dedent(FOUND[name]).strip("\n"), "    ") + "\n"
    change = CHANGES.get(name, "args[3] = 1")
    verdict = check(Script(text, ((), (), (change,), ())), backend)
    assert verdict.kind == "same", verdict.message
