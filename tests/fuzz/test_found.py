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


@pytest.mark.parametrize("backend", ["preheat", "eager"])
@pytest.mark.parametrize("name", FOUND)
def test_programs_that_failed(name, backend):
    text = HEAD + textwrap.indent(textwrap.dedent(FOUND[name]).strip("\n"), "    ") + "\n"
    verdict = check(Script(text, ((), (), ("args[3] = 1",))), backend)
    assert verdict.kind == "same", verdict.message
