"""The device that a silo computes on, tested before use."""

import torch

from pomona.core.errors import ConfigError, worded


def require_device(name: str) -> str:
    """Test a device of ``silo.toml``, make this process use that GPU, and return the device's kind, cpu or cuda.

    Raises ConfigError if PyTorch cannot use it: no CUDA, no driver, no such GPU, or no free memory there.
    """
    kind = name.partition(":")[0]
    if kind == "cuda":
        try:
            torch.cuda.set_device(name)
            torch.zeros(1, device=name)
        except Exception as fault:  # of any kind, from the driver or the build
            raise ConfigError(
                f"device = {name!r}, but PyTorch cannot use it ({worded(fault)}); set device = 'cpu' in silo.toml, or "
                "see to the GPU's driver and PyTorch's build"
            ) from fault
    return kind
