"""What a torch module is, for those who may not import torch themselves."""

from typing import Any

import torch


def is_module(value: Any) -> bool:
    """Whether `value` is an instance of `torch.nn.Module`."""
    return isinstance(value, torch.nn.Module)
