"""Two copies of a network's body next to each other, under one last layer on the features of both.

Kim, Stratos, Sarikaya. Frustratingly easy neural domain adaptation. COLING 2016. What is a client's
own comes first, then what is shared.
"""

import torch
from torch import Tensor, nn

from pomona.core.errors import ConfigError
from pomona.models.layers import layers

OWN, SHARED = "own_body", "shared_body"


class TwoBodies(nn.Module):
    """Maps samples to the last layer's outputs on the features of both bodies (b, 2 f)."""

    def __init__(self, own: nn.Module, shared: nn.Module, name: str) -> None:
        """Take both bodies from whole networks of one architecture, with different values.

        Raises ConfigError, with the name, unless they end with ``nn.Linear`` above other layers.
        """
        super().__init__()
        *below, (path, _) = layers(own)
        last = own.get_submodule(path)
        if not below or type(last) is not nn.Linear:
            raise ConfigError(
                f"model.bodies = 2: {name} does not end with nn.Linear above other layers; take "
                "another network"
            )
        blocks: list[str] = []
        for prefix, body in ((OWN, own), (SHARED, shared)):
            body.set_submodule(path, nn.Identity())
            self.add_module(prefix, body)
            blocks += [f"{prefix}.{block}" for block in getattr(body, "parameter_blocks", ())]
        self.parameter_blocks = tuple(blocks)
        self._last = path.rpartition(".")[2]
        head = nn.Linear(2 * last.in_features, last.out_features, bias=last.bias is not None)
        self.add_module(self._last, head)

    def forward(self, x: Tensor) -> Tensor:
        """Return outputs (b, K)."""
        features = [self.get_submodule(body)(x).flatten(1) for body in (OWN, SHARED)]
        outputs: Tensor = self.get_submodule(self._last)(torch.cat(features, 1))
        return outputs
