"""The models of pFedFDA's authors against Pomona's, after each of three rounds.

    PFEDFDA=checkout python benchmarks/peers/pfedfda_models.py

As ``pfllib_models.py``, for a checkout of cj-mclaughlin/pFedFDA, which needs statsmodels and
pytorch-minimize in addition to Pomona's packages. Clients have some 15 samples, and lr is 1, so
that their own statistics count in part. Its reader of images, which needs torchvision, is left out,
and the GPU that it asks for is the CPU.
"""

import os
import sys
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from copy import deepcopy
from importlib import import_module
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from pfllib_models import ROUNDS, Ours, Vectors, show, vector
from scipy.optimize import minimize
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

SMALL = {"train_limit": 60, "test_limit": 120}
OVERRIDES = {
    "data": {"name": "digits", **SMALL},
    "partition": {"name": "dirichlet", "beta": 1.0, "min_size": 8},
    "lr": 1.0,
}
READER = "get_augmented_partition", "get_partition", "get_digit5", "get_office10"


class Network(nn.Module):
    """The network as its clients call it."""

    def __init__(self, network: nn.Sequential) -> None:
        super().__init__()
        self.base, self.fc = network[:-1], network[-1]
        self.D = self.fc.in_features

    def forward(self, x: Tensor, return_feat: bool = False) -> Any:
        """Return outputs, and the features before them if wanted."""
        z = self.base(x)
        return (z, self.fc(z)) if return_feat else self.fc(z)


class Theirs:
    """The method as its authors run it; ``changes``: what is replaced of it."""

    def __init__(self, ours: Ours, changes: tuple["Change", ...]) -> None:
        self.ours, self.changes = ours, changes

    def rounds(self) -> list[Vectors]:
        """Each round's models."""
        clients, servers = (import_module(f"{s}s.{s}_fedfda") for s in ("client", "server"))
        with ExitStack() as patches:
            patches.enter_context(warnings.catch_warnings(action="ignore"))
            patches.enter_context(patch.object(torch.Tensor, "cuda", lambda tensor: tensor))
            patches.enter_context(patch.object(servers, "ClientFedFDA", self.reading(clients)))
            torch.manual_seed(0)
            server = servers.ServerFedFDA(self.settings())
            for change in self.changes:
                change(server, clients, patches)
            return list(islice(self.trained(server), ROUNDS))

    def trained(self, server: Any) -> Iterator[Vectors]:
        """Yield each round's models."""
        while True:
            server.r += 1
            server.sample_active_clients()
            server.send_models()
            server.train_clients()
            models = {}
            for client in server.clients:
                personal = deepcopy(client)
                personal.set_lda_weights(client.adaptive_means, client.adaptive_covariance)
                models[f"client {client.client_idx}"] = vector(personal.model.parameters())
            server.aggregate_models()
            yield {
                **models,
                "shared": vector(server.model.base.parameters()),
                "class means": server.global_means.flatten().clone(),
                "covariance": server.global_covariance.flatten().clone(),
            }

    def reading(self, clients: ModuleType) -> type:
        """Its client with the task's data, in order and in one batch."""
        data = self.ours.data

        class Reading(clients.ClientFedFDA):  # type: ignore[misc, name-defined]
            def setup_dataset(self, _: Namespace) -> None:
                rows = (data.rows[split][self.client_idx] for split in ("train", "test"))
                self.trainset, self.testset = (TensorDataset(*data.gather(index)) for index in rows)
                self.num_train, self.num_test = len(self.trainset), len(self.testset)

            def load_train_data(self, **_: Any) -> Any:
                return DataLoader(self.trainset, self.num_train)

        return Reading

    def settings(self) -> Namespace:
        """Settings as its command line would set them."""
        config = self.ours.config
        options = {
            "model": Network(self.ours.scenario.module()),
            "num_classes": self.ours.classes,
            "num_clients": config.clients,
            "global_rounds": ROUNDS,
            "local_epochs": config.local_epochs,
            "batch_size": config.batch_size,
            "lr": config.lr,
            "device": "cpu",
            "train_prop": 1.0,
            "sampling_prob": 1.0,
            "single_beta": True,
        }
        unused = "exp_name partition_path model_name momentum wd eval_gap local_beta"
        return Namespace(**options, **dict.fromkeys(unused.split(), 0))


Change = Callable[[Any, Any, ExitStack], None]


def start_of_head(server: Any, module: Any, patches: ExitStack) -> None:
    """Class means start at the weight of the initial head, not at random numbers."""
    server.global_means = server.model.fc.weight.detach().clone()


def trained_features(server: Any, module: Any, patches: ExitStack) -> None:
    """Features are those of the trained model, not of the model as it moved."""
    for client in server.clients:
        solve, estimate = client.solve_beta, client.compute_mle_statistics

        def solved(*_: Any, client: Any = client, solve: Any = solve) -> None:
            solve(*client.compute_feats())

        def estimated(client: Any = client, estimate: Any = estimate, **samples: Any) -> Any:
            if (
                len(samples["labels"]) > client.num_train
            ):  # of all epochs, and so not those of a fold
                samples = dict(zip(("feats", "labels"), client.compute_feats(), strict=True))
            return estimate(**samples)

        client.solve_beta, client.compute_mle_statistics = solved, estimated


def every_second(server: Any, module: Any, patches: ExitStack) -> None:
    """Folds take every second sample of a class, not random ones."""

    class Folds:
        def __init__(self, **_: Any) -> None: ...

        def split(self, _: Any, y: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
            rank = np.array([(y[:k] == y[k]).sum() for k in range(len(y))])
            even, odd = (np.flatnonzero(rank % 2 == parity) for parity in (0, 1))
            yield from ((even, odd), (odd, even))

    patches.enter_context(patch.object(module, "StratifiedKFold", Folds))


def minimised(server: Any, module: Any, patches: ExitStack) -> None:
    """Cross-validation is solved to its minimum in 64 bits, not by ten steps in 32."""
    for client in server.clients:
        solve = client.solve_beta

        def precise(feats: Tensor, labels: Any, solve: Any = solve) -> None:
            usual = torch.get_default_dtype()
            torch.set_default_dtype(torch.float64)
            solve(feats.double(), labels)
            torch.set_default_dtype(usual)

        client.solve_beta = precise

    def solved(loss: Callable[[Tensor], Tensor], x0: Tensor, **_: Any) -> Namespace:
        def value_and_gradient(x: np.ndarray) -> tuple[float, np.ndarray]:
            b = torch.tensor(x, dtype=x0.dtype, requires_grad=True)
            value = loss(b)
            return float(value.detach()), torch.autograd.grad(value, b)[0].numpy()

        best = minimize(
            value_and_gradient, x0, jac=True, method="L-BFGS-B", bounds=[(0, 1)] * len(x0)
        )
        return Namespace(x=torch.tensor(best.x, dtype=x0.dtype))

    patches.enter_context(patch.object(module.torchmin, "minimize", solved))


def no_offset(server: Any, module: Any, patches: ExitStack) -> None:
    """A covariance has no 1e-4 more in every number."""
    for client in server.clients:
        estimate = client.compute_mle_statistics

        def estimated(estimate: Any = estimate, **samples: Any) -> Any:
            means, scatter, priors, counts = estimate(**samples)
            return means, scatter - 1e-4 * (counts.sum() - 1), priors, counts

        client.compute_mle_statistics = estimated


CHANGES: tuple[Change, ...] = (start_of_head, minimised, every_second, trained_features, no_offset)


def main() -> None:
    """Run."""
    reader = ModuleType("data.utils.loader")
    vars(reader).update(dict.fromkeys(READER))
    sys.modules[reader.__name__] = reader
    sys.path.insert(0, str(Path(os.environ["PFEDFDA"]).absolute()))
    torch.set_num_threads(1)
    ours = Ours("pfedfda", OVERRIDES)
    expected = list(islice(ours.rounds(), ROUNDS))
    for k in range(len(CHANGES) + 1):
        show("pfedfda", CHANGES[:k], expected, Theirs(ours, CHANGES[:k]).rounds())


if __name__ == "__main__":
    main()
