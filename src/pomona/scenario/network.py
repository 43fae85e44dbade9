"""The network of a scenario: its first values, its frozen part, and the row that is trained."""

from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from pomona.config import Config
from pomona.core.rng import number
from pomona.data.dataset import Dataset, network_shape
from pomona.methods.base import Initial
from pomona.models import build
from pomona.models.frozen_prefix import SplitNetwork, split_network
from pomona.models.layers import active, frozen, share
from pomona.models.parameter_space import ParameterSpace
from pomona.tasks import Task


@dataclass(frozen=True)
class Network:
    """The network that the settings name, for the shapes of a data set.

    Attributes:
        config: the run's settings.
        dataset: its data; the samples are not read.
        task: of the targets.
    """

    config: Config
    dataset: Dataset
    task: Task

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample as network input: (C, H, W), (C, D, H, W), (F,) or (T,)."""
        return network_shape(self.dataset.kind, self.dataset.x.shape[1:])

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of one sample's output."""
        return self.task.output_shape(self.dataset.n_outputs, self.input_shape)

    def module(self, client: int | None = None) -> nn.Module:
        """Return the network with the run's initial values, or with a client's own if given.

        Frozen tensors are the run's in either case, and shared by all of its networks.
        """
        module = deepcopy(self.common) if client is None else self._built(client)
        share(module, self.frozen)
        return module

    @cached_property
    def common(self) -> nn.Module:
        """The network with the run's initial values, built once and copied for each use."""
        return self._built()

    def _built(self, client: int | None = None) -> nn.Module:
        address = () if client is None else (client,)
        seed = number(self.config.seed, "model", *address)
        width, vocabulary = self.dataset.n_outputs, self.dataset.vocabulary
        shape = self.output_shape
        return build(self.config.model, self.input_shape, width, vocabulary, seed, shape)

    @cached_property
    def frozen(self) -> dict[str, Tensor]:
        """The frozen tensors by name; empty if the whole network is trained."""
        return frozen(self.common)

    @property
    def draws(self) -> bool:
        """Whether the network draws random numbers while it trains: for dropout."""
        layers = (layer for _, layer in active(self.common))
        return any(isinstance(layer, nn.modules.dropout._DropoutNd) for layer in layers)

    def trained(self) -> tuple[nn.Module, ParameterSpace]:
        """Return the network for an objective, without a frozen part with cached features; and the
        row's space.
        """
        module = self._on_device()
        split = self._split(module)
        return split.trained if split else module, ParameterSpace(module, self.config.buffers)

    @cached_property
    def keeps_features(self) -> bool:
        """Whether the features of the frozen part are computed once and cached."""
        return self.split() is not None

    def split(self) -> SplitNetwork | None:
        """Return the frozen and the trained part if the features between them are cached."""
        return self._split(self._on_device())

    @cached_property
    def initial(self) -> Initial:
        """The models that training starts from."""
        module = self.module()
        space, device = ParameterSpace(module, self.config.buffers), self.config.device
        # cached: a large network takes seconds to draw, once per client
        common = space.pack(module).to(device)

        def model_row(client: int | None) -> Tensor:
            row = common.clone() if client is None else space.pack(self.module(client)).to(device)
            return row[: space.trained]

        return Initial.from_space(space, model_row, common[space.trained :])

    def _on_device(self) -> nn.Module:
        return self.module().to(self.config.device)

    def _split(self, module: nn.Module) -> SplitNetwork | None:
        # training sees other samples in each step
        random = self.config.augment or self.config.model.patch
        if self.config.model.cache_features == "off" or random or not self.frozen:
            return None
        dtype = torch.int64 if self.dataset.vocabulary else torch.float32
        return split_network(
            module, torch.zeros((1, *self.input_shape), dtype=dtype, device=self.config.device)
        )
