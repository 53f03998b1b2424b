"""The native checker, loaded for tests: `native_check(rows, arguments)` is -1 or the row that differs."""

import ctypes
import functools

from preheat.generate.build import host_target, image
from preheat.generate.runtime_check import check_text
from preheat.run.load import load

PROTOTYPE = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)


@functools.lru_cache
def loaded():
    return load(image(check_text(), host_target()))


def native_check(rows, arguments) -> int:
    function = PROTOTYPE(loaded().address("preheat_check"))
    words = (ctypes.c_uint64 * max(len(arguments), 1))(*map(id, arguments))
    return function(rows.address, rows.count, ctypes.addressof(words))
