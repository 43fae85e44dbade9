"""The device that a silo computes on, tried before anything is computed there."""

import torch

from pomona.core.errors import ConfigError, worded


def require_device(name: str) -> str:
    """The kind of a device of ``silo.toml``, cpu or cuda, once it has held a number; this process then takes that GPU.

    Raises ConfigError where PyTorch cannot use it: it has no CUDA, sees no driver or no such GPU, or has no room there.
    """
    kind = name.partition(":")[0]
    if kind == "cuda":
        try:
            torch.cuda.set_device(name)
            torch.zeros(1, device=name)
        except Exception as fault:  # a driver's and a build's own, of any kind
            raise ConfigError(
                f"device = {name!r}, but PyTorch cannot use it ({worded(fault)}); set device = 'cpu' in silo.toml, or "
                "see to the GPU's driver and PyTorch's build"
            ) from fault
    return kind
