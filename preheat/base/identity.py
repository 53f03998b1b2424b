"""Which object a value is, as a number.

    identity(x) == identity(y)        as long as both live: x is y

`id` says it, too, and tells each audit hook that it was asked. A first call asks hundreds of thousands of times, and one
hook in Python (filelock has one, and so has whoever loads a model from a hub) makes that 1.7 us each, not 0.05 (CPython
3.12): half of a capture. The number is not the address, for which `id` remains.
"""

identity = object.__hash__
