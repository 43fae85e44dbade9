"""Networks that methods make of the run's own around its last layer: two bodies, or a valve.

Two bodies: Kim, Stratos, Sarikaya. Frustratingly easy neural domain adaptation. COLING 2016. What
is a client's own comes first, then what is shared. The valve: Zhang et al., GPFL, ICCV 2023.
"""

from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from pomona.core.errors import ConfigError
from pomona.models.layers import layers
from pomona.models.settings import OWN_BODY, SHARED_BODY


def last_layer(network: nn.Module, name: str, key: str) -> tuple[str, nn.Linear]:
    """Return path and module of a network's last layer.

    Raises ConfigError, with the name and the setting ``key``, unless it is ``nn.Linear`` above
    other layers, without low-rank changes.
    """
    *below, (path, _) = layers(network)
    last = network.get_submodule(path)
    if not below or type(last) is not nn.Linear:
        raise ConfigError(
            f"{key}: {name} does not end with nn.Linear above other layers; take another network, "
            "or leave its last layer out of model.train.lora.on"
        )
    return path, last


def blocks(prefix: str, body: nn.Module) -> tuple[str, ...]:
    """Return the ``parameter_blocks`` of a body under its path in a larger network."""
    return tuple(f"{prefix}.{block}" for block in getattr(body, "parameter_blocks", ()))


class TwoBodies(nn.Module):
    """Maps samples to the last layer's outputs on the features of both bodies (b, 2 f)."""

    def __init__(self, own_body: nn.Module, shared_body: nn.Module, name: str) -> None:
        """Take both bodies from whole networks of one architecture, with different values.

        Raises ConfigError as ``last_layer`` does.
        """
        super().__init__()
        path, last = last_layer(own_body, name, "model.bodies = 2")
        bodies = {OWN_BODY: own_body, SHARED_BODY: shared_body}
        for prefix, body in bodies.items():
            body.set_submodule(path, nn.Identity())
            self.add_module(prefix, body)
        self.parameter_blocks = tuple(chain(*(blocks(*body) for body in bodies.items())))
        self._last = path.rpartition(".")[2]
        head = nn.Linear(2 * last.in_features, last.out_features, bias=last.bias is not None)
        self.add_module(self._last, head)

    def forward(self, x: Tensor) -> Tensor:
        """Return outputs (b, K)."""
        features = [self.get_submodule(body)(x).flatten(1) for body in (OWN_BODY, SHARED_BODY)]
        outputs: Tensor = self.get_submodule(self._last)(torch.cat(features, 1))
        return outputs


class Valve(nn.Module):
    """Maps features z (b, f) to ReLU(z (1 + gamma(c)) + beta(c)) under two conditions c, the
    client's own and the common one; gamma and beta are a linear layer, ReLU and LayerNorm each.

    ``conditions`` (2, f) come first of all parameters, as training leaves them as they are; then
    ``embeddings`` (K, f) of the classes.
    """

    def __init__(self, classes: int, features: int) -> None:
        super().__init__()
        self.conditions = nn.Parameter(torch.zeros(2, features))
        self.embeddings = nn.Parameter(torch.randn(classes, features))
        self.gamma, self.beta = (
            nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.LayerNorm(features))
            for _ in range(2)
        )

    def forward(self, z: Tensor) -> Tensor:
        """Return the features of both conditions, and the cosines of the common one's with the
        embeddings: (b, 2 f + K).
        """
        scale, shift = 1 + self.gamma(self.conditions), self.beta(self.conditions)
        personal, common = (torch.relu(z * scale[k] + shift[k]) for k in range(2))
        return torch.cat([personal, common, normalize(common) @ normalize(self.embeddings).T], 1)


class LinearOnFirst(nn.Linear):
    """A linear layer on the first of its inputs; the rest is for a loss on features."""

    def forward(self, x: Tensor) -> Tensor:
        """Return outputs (b, K) of inputs (b, f or more)."""
        return super().forward(x[:, : self.in_features])


class Valved(nn.Module):
    """A network with a valve before its last layer, which reads the client's own features alone."""

    def __init__(self, body: nn.Module, name: str) -> None:
        """Take the body and the values of the last layer from a whole network.

        Raises ConfigError as ``last_layer`` does.
        """
        super().__init__()
        path, last = last_layer(body, name, "model.valve")
        body.set_submodule(path, nn.Identity())
        self.valve = Valve(last.out_features, last.in_features)
        self.body, self.parameter_blocks = body, blocks("body", body)
        self.head = LinearOnFirst(last.in_features, last.out_features)
        self.head.weight, self.head.bias = last.weight, last.bias

    def forward(self, x: Tensor) -> Tensor:
        """Return outputs (b, K)."""
        outputs: Tensor = self.head(self.valve(self.body(x).flatten(1)))
        return outputs
