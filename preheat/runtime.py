"""The native checker and driver of this machine: kept on disk, made where they are not there yet."""

import functools

from preheat.ir.pack import decode, encode
from preheat.ir.plan import Image
from preheat.run.load import machine_name
from preheat.store.calls import machine_key
from preheat.store.disk import Disk


@functools.lru_cache(maxsize=8)
def runtime_image(disk: Disk | None) -> Image:
    """The native checker and driver of this machine, from `disk` or made anew."""
    key, hint = machine_key("runtime", machine_name()), "image"
    for found in disk.read(key, hint) if disk is not None else ():
        image = decode(found.payload)
        if isinstance(image, Image):
            return image
    from preheat.compiler import runtime_image as make_runtime  # lazy: as in dispatch

    image = make_runtime()
    if disk is not None:
        disk.write(key, hint, encode(image))
    return image
