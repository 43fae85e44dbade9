"""Low-rank adaptation (LoRA; Hu et al., ICLR 2022): a frozen layer plus a trained change of low
rank.

    h = W x + b + s B A x,   A (r, in), B (out, r), s = alpha / r        (equation 3)

A is drawn as PyTorch draws a layer's weight, and B starts at 0, so that the network initially does
not change. For a convolution, A is a convolution of the same geometry to r channels, and B one of
kernel size 1.

The ``peft`` package (0.21.2) has the same layers. With the same A and B, its outputs are identical
to the bit for a linear layer and a strided convolution, and its trained parameters would make a row
of the same length. It is not used because it brings ten packages, including ``transformers`` and
``accelerate``, 95 MB in all, and takes 5 s to import, where the class below is sufficient.
"""

import torch
from torch import Tensor, nn

from pomona.core.errors import ConfigError
from pomona.models.layers import matching
from pomona.models.settings import LoraPart

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d


class Lora(nn.Module):
    """A frozen layer with a trained change; tensors are named as peft names them, ``lora_A.weight``
    and ``lora_B.weight``.
    """

    def __init__(self, frozen: nn.Linear | Convolution, rank: int, scale: float) -> None:
        super().__init__()
        self.frozen, self.scale = frozen, scale
        self.lora_A: nn.Linear | Convolution
        self.lora_B: nn.Linear | Convolution
        if isinstance(frozen, nn.Linear):
            self.lora_A = nn.Linear(frozen.in_features, rank, bias=False)
            self.lora_B = nn.Linear(rank, frozen.out_features, bias=False)
        else:
            geometry = (
                frozen.kernel_size,
                frozen.stride,
                frozen.padding,
                frozen.dilation,
                1,
                False,
            )
            self.lora_A = type(frozen)(frozen.in_channels, rank, *geometry, frozen.padding_mode)  # type: ignore[arg-type]
            self.lora_B = type(frozen)(rank, frozen.out_channels, 1, bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return the frozen layer's output plus the change."""
        y: Tensor = self.frozen(x) + self.scale * self.lora_B(self.lora_A(x))
        return y

    @property
    def weight(self) -> Tensor:
        """W + s B A, in W's shape; attention reads its output layer's tensors instead of calling
        the layer.
        """
        change = self.lora_B.weight.flatten(1) @ self.lora_A.weight.flatten(1)
        return self.frozen.weight + self.scale * change.view_as(self.frozen.weight)

    @property
    def bias(self) -> Tensor | None:
        """The frozen layer's bias."""
        return self.frozen.bias

    @torch.no_grad()
    def merged(self) -> nn.Linear | Convolution:
        """Return the frozen layer with the change added to its weight, in place."""
        self.frozen.weight.copy_(self.weight)
        return self.frozen


def insert(
    module: nn.Module, rank: int, scale: float, globs: tuple[str, ...], trained: LoraPart = "both"
) -> None:
    """Add LoRA to the layers whose paths match one of ``globs``, and freeze all other parameters;
    ``trained`` is what is trained of it.

    Raises ConfigError for unsupported layers.
    """
    submodules = dict(module.named_modules())
    module.requires_grad_(False)
    paths = matching(list(submodules), globs, "model.train.lora.on", "layer")
    for path in sorted(paths):
        layer = submodules[path]
        if not isinstance(layer, nn.Linear | Convolution) or getattr(layer, "groups", 1) != 1:
            raise ConfigError(
                f"model.train.lora.on: {path} is a {type(layer).__name__}; LoRA applies to linear "
                "layers and convolutions of one group"
            )
        if rank > min(layer.weight.flatten(1).shape):
            raise ConfigError(
                f"model.train.lora.rank = {rank}, but {path} has a weight of rank "
                f"{min(layer.weight.flatten(1).shape)} "
                "at most; lower it, or take the layer out of model.train.lora.on"
            )
        change = Lora(layer, rank, scale)
        change.lora_A.requires_grad_(trained == "both")
        module.set_submodule(path, change)
    declared: tuple[str, ...] = getattr(module, "parameter_blocks", ())
    module.parameter_blocks = (*declared, *sorted(paths))  # type: ignore[assignment]


def merge(module: nn.Module) -> nn.Module:
    """Merge all changes into their layers, which restores the architecture before ``insert``."""
    for path, submodule in list(module.named_modules()):
        if isinstance(submodule, Lora):
            module.set_submodule(path, submodule.merged())
    return module
