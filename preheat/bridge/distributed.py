"""What torch.distributed does around a model: how many gradients DistributedDataParallel sends at once."""

from collections.abc import Callable, Mapping
from typing import Any

from preheat.bridge.ops import private

_DDP = private("nn.parallel.DistributedDataParallel")
_MEGABYTE = 1 << 20


def training_settings(options: Mapping[str, Any], target: Callable) -> dict[str, Any]:
    """What `options` ask of the training of `target`, by the names of `differentiate.Aims`; {} for
    the defaults. Where no `handover` is asked for, it is what DDP sends together if it runs `target` now, or
    is it.
    """
    found: dict[str, Any] = {}
    budget, megabytes = options.get("memory_budget", 1.0), options.get("gradient_bucket_mb", 0.0)
    if budget != 1.0:
        found["budget"] = budget
    if options.get("backward_reads", "eager") == "any":
        found["reads_any"] = True
    handover = int(megabytes * _MEGABYTE) or _sent_together(target)
    if handover:
        found["handover"] = handover
    return found


def _sent_together(target: Callable) -> int:
    """Bytes of gradients that DDP sends together; 0 where there is none."""
    if _DDP is None:
        return 0
    owner = getattr(target, "__self__", target)
    active = getattr(_DDP, "_active_ddp_module", None)  # set while its forward runs
    found = owner if isinstance(owner, _DDP) else active
    return int(getattr(found, "bucket_bytes_cap", 0))
