"""PFLlib's models against Pomona's, after each of three rounds.

    PFLLIB=checkout python benchmarks/peers/pfllib_models.py [METHOD ...]

Needs Pomona's packages, and h5py and cvxpy, which PFLlib imports. Both start from
the same weights, on the same four clients of digits, and take two local epochs of plain SGD, each
one batch of all of a client's samples: PFLlib draws orders of its own, and leaves samples out of
smaller batches. Every method runs as PFLlib has it, and then with one part after another replaced.
Printed is the largest absolute difference in each round, of the clients' trained models and of the
server's state.
"""

import io
import os
import random  # noqa: TID251 - the generator that PFLlib draws from
import sys
import tempfile
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, redirect_stdout
from copy import deepcopy
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

from pomona.config import resolve
from pomona.core.round import Roster
from pomona.federation import client_queries
from pomona.federation.client import ClientRuntime
from pomona.federation.exchange import ClientRequest, stack
from pomona.federation.round_plan import round_of
from pomona.methods.prototypes import class_means, fedpac, pfedfda
from pomona.scenario import Scenario

ROUNDS, DATA, LAMBDA, KAPPA, MU = 3, "Digits", 3.0, 5.0, 0.3
SETTINGS = {
    "data": {"name": "digits", "train_limit": 240, "test_limit": 120},
    "partition": {"name": "dirichlet", "beta": 0.3, "min_size": 8},  # some lack classes
    "model": {"name": "mlp", "hidden": [16]},
    "clients": 4,
    "local_epochs": 2,
    "batch_size": 1000,
    "lr": 0.1,
    "engine": "torch",
}
METHODS: Mapping[str, dict[str, Any]] = {
    "feddbe": {"kappa": KAPPA, "mu": MU},
    "fedproto": {"lambda": LAMBDA, "weigh": "clients"},
    "fedpac": {"lambda": LAMBDA},
    "fedas": {"alignment_lr": 0.01},
}
SERVERS = {"feddbe": "FedDBE", "fedproto": "FedProto", "fedpac": "FedPAC", "fedas": "FedAS"}
Vectors = dict[str, Tensor]  # what is compared of one round, by name


class Ours:
    """A method on the task, as Pomona runs it; ``overrides``: other settings."""

    def __init__(self, name: str, overrides: Mapping[str, Any] | None = None) -> None:
        method = {"name": name, **METHODS.get(name, {})}
        self.config = resolve(SETTINGS, {"method": method, **(overrides or {})})
        self.scenario = Scenario.prepare(self.config)
        self.data = self.scenario.objective().data
        self.classes = len(self.scenario.dataset.classes)
        self.roster = Roster(tuple(map(len, self.data.rows["train"])))

    def rounds(self) -> Iterator[Vectors]:
        """Yield each round's models."""
        method, seed = self.config.method.method(), self.config.seed
        initial, objective = self.scenario.initial, self.scenario.objective()
        ids, roster, number = self.roster.members, self.roster, 0
        clients = ClientRuntime(method.client, objective, initial, tuple((i,) for i in ids), seed)
        clients.add_clients(ids, roster, None)
        state = method.server.start(initial, roster, seed)
        while number := number + 1:
            round_ = round_of(self.config, number)
            visit = ClientRequest(
                round_, roster, ids, watched=frozenset({"trained"}), keep_models=True
            )
            replies = clients.visit(visit, method.server.downlink(state, ids, roster, round_))
            uplink = stack(replies, lambda r: r.uplink)
            state = method.server.aggregate(state, uplink, ids, roster, round_)
            clients.commit(ids)
            models = {
                f"client {i}": vector(
                    client_queries.models(clients, i)["personal", "trained"].values()
                )
                for i in ids
            }
            yield {**models, **server_tensors(state)}


def server_tensors(state: Any) -> Vectors:
    """The tensors of a server's state, under the names of ``Theirs.server_tensors``."""
    if isinstance(state, class_means.ClassMeans):
        return {"class means": state.means.flatten()}
    if isinstance(state, fedpac.BodyAndHeads):
        return {"shared": state.body, "heads": state.heads.flatten(), **server_tensors(state.means)}
    if isinstance(state, pfedfda.BodyAndGaussians):
        means, covariance = state.means.flatten(), state.covariance.flatten()
        return {"shared": state.body, "class means": means, "covariance": covariance}
    if isinstance(state, Tensor):
        return {"shared": state}
    return {"shared": state.model, "mean feature": state.mean}


def vector(tensors: Any) -> Tensor:
    """Tensors as one vector, copied."""
    return torch.cat([t.detach().flatten() for t in tensors])


class OverError(Exception):
    """Ends PFLlib's loop over rounds."""


class Theirs:
    """A method on the task, as PFLlib runs it; ``changes``: what is replaced of it."""

    def __init__(self, name: str, ours: Ours, changes: tuple["Change", ...]) -> None:
        self.name, self.ours, self.changes = name, ours, changes
        self.completed: list[Vectors] = []
        self.trained: Vectors = {}

    def rounds(self) -> list[Vectors]:
        """Each round's models."""
        module = import_module(f"flcore.servers.server{self.name.removeprefix('fed')}")
        base = import_module("flcore.clients.clientbase").Client
        read = base.load_train_data

        def all_samples(client: Any, batch_size: int | None = None) -> Any:
            return read(client, client.train_samples)

        with ExitStack() as patches:
            patches.enter_context(redirect_stdout(io.StringIO()))
            patches.enter_context(patch.object(base, "load_train_data", all_samples))
            patches.enter_context(warnings.catch_warnings(action="ignore"))
            random.seed(0)
            self.server = getattr(module, SERVERS[self.name])(self.settings(), 0)
            self.server.select_clients = self.selected
            for client in self.server.clients:
                client.train = self.recorded(client)
            for change in self.changes:
                change(self, module, patches)
            try:
                self.server.train()
            except OverError:
                return self.completed
        raise AssertionError("PFLlib ended by itself")

    def recorded(self, client: Any) -> Callable[..., None]:
        """A client's training, which notes its model."""
        train = client.train

        def noted(*args: Any) -> None:
            train(*args)
            model = deepcopy(client.model)
            if hasattr(client, "client_mean"):  # a bias before the head is one of the head
                with torch.no_grad():
                    model.head.bias += model.head.weight @ client.client_mean
            self.trained[f"client {client.id}"] = vector(model.parameters())

        return noted

    def selected(self) -> list[Any]:
        """All clients, in order; a round begins with this, and the last one is then over."""
        if self.trained:
            self.completed.append({**self.trained, **self.server_tensors()})
        if len(self.completed) == ROUNDS:
            raise OverError
        return list(self.server.clients)

    def server_tensors(self) -> Vectors:
        """The server's tensors."""
        model, clients = self.server.global_model, self.server.clients
        protos = getattr(self.server, "global_protos", None)
        means = {}
        if protos:
            rows = [protos[k] for k in range(self.ours.classes)]
            zeros = torch.zeros_like(next(row for row in rows if len(row)))
            means = {"class means": torch.cat([row if len(row) else zeros for row in rows])}
        if self.name == "feddbe":
            mean = clients[0].global_mean
            return {"shared": vector(model.parameters()), "mean feature": mean}
        if self.name == "fedproto":
            return means
        if self.name == "fedas":
            return {"shared": vector(model.base.parameters())}
        heads = vector(p for c in clients for p in c.model.head.parameters())
        return {"shared": vector(model.parameters()), "heads": heads, **means}

    def settings(self) -> Namespace:
        """Settings as its command line would set them."""
        config, network = self.ours.config, self.ours.scenario.module()
        split = import_module("flcore.trainmodel.models").BaseHeadSplit
        options = {
            "model": split(nn.Sequential(*network[:-1]), network[-1]),
            "device": "cpu",
            "dataset": DATA,
            "num_classes": self.ours.classes,
            "global_rounds": ROUNDS,
            "local_epochs": config.local_epochs,
            "batch_size": config.batch_size,
            "local_learning_rate": config.lr,
            "num_clients": config.clients,
            "algorithm": self.name,
            "join_ratio": 1.0,
            "time_threthold": 10_000,
            "eval_gap": 1000,
            "learning_rate_decay_gamma": 1.0,
            "lamda": LAMBDA,
            "kl_weight": KAPPA,
            "momentum": MU,
        }
        unused = (
            "random_join_ratio few_shot time_select goal save_folder_name top_cnt auto_break "
            "client_drop_rate train_slow_rate send_slow_rate dlg_eval dlg_gap batch_num_per_client "
            "num_new_clients fine_tuning_epoch_new learning_rate_decay"
        )
        return Namespace(**options, **dict.fromkeys(unused.split(), 0))


Change = Callable[[Theirs, Any, ExitStack], None]


def keep_first_models(run: Theirs, module: Any, patches: ExitStack) -> None:
    """The models that clients train before the first round are averaged, not forgotten."""
    run.server.receive_models()
    run.server.aggregate_parameters()


def means_of_trained(run: Theirs, module: Any, patches: ExitStack) -> None:
    """Class means are those under the trained model, by its own function that it does not call."""
    for client in run.server.clients:
        train = client.train

        def noted(client: Any = client, train: Callable[[], None] = train) -> None:
            train()
            client.collect_protos()

        client.train = noted


def uploads_in_order(run: Theirs, module: Any, patches: ExitStack) -> None:
    """Uploads are in the order of the statistics that weights of heads follow from."""
    patches.enter_context(
        patch.object(random, "sample", lambda population, k: list(population[:k]))
    )


def heads_copied(run: Theirs, module: Any, patches: ExitStack) -> None:
    """All heads are mixed from those that were uploaded."""
    receive = run.server.receive_models

    def copied() -> None:
        receive()
        run.server.uploaded_heads = deepcopy(run.server.uploaded_heads)

    run.server.receive_models = copied


def means_by_samples(run: Theirs, module: Any, patches: ExitStack) -> None:
    """A class's mean weighs clients by their samples of it."""
    data, K = run.ours.data, run.ours.classes
    counts = [torch.bincount(data.y[rows], minlength=K) for rows in data.rows["train"]]

    def pooled(protos: list[dict[int, Tensor]]) -> dict[int, Any]:
        means: dict[int, Any] = {k: [] for k in range(K)}
        for k in means:
            having = [
                (n[k], prototypes[k])
                for n, prototypes in zip(counts, protos, strict=True)
                if k in prototypes
            ]
            if having:
                means[k] = sum(n * z for n, z in having) / sum(n for n, _ in having)
        return means

    patches.enter_context(patch.object(module, "proto_aggregation", pooled))


CHANGES: Mapping[str, tuple[Change, ...]] = {
    "feddbe": (keep_first_models,),
    "fedproto": (means_of_trained,),
    "fedpac": (uploads_in_order, heads_copied, means_by_samples),
    "fedas": (),
}


def files(ours: Ours, root: Path) -> None:
    """Write the task as a PFLlib data set, and go where its programs would run."""
    for split in ("train", "test"):
        folder = root / "dataset" / DATA / split
        folder.mkdir(parents=True)
        for i, rows in enumerate(ours.data.rows[split]):
            x, y = ours.data.gather(rows)
            np.savez(folder / f"{i}.npz", data={"x": x.numpy(), "y": y.numpy()})  # type: ignore[arg-type]
    (root / "system").mkdir()
    os.chdir(root / "system")


def compare(name: str) -> None:
    """Print the differences of one method."""
    ours, first = Ours(name), 1 if name == "feddbe" else 0
    expected = list(islice(ours.rounds(), first, first + ROUNDS))
    with tempfile.TemporaryDirectory() as folder:
        files(ours, Path(folder))
        for k in range(len(CHANGES[name]) + 1):
            changes = CHANGES[name][:k]
            theirs = Theirs(name, ours, changes).rounds()
            show(name, changes, expected, theirs)


def show(name: str, changes: tuple[Any, ...], ours: list[Vectors], theirs: list[Vectors]) -> None:
    """Print the differences in each round of tensors that both have, by name."""
    print(f"{name}, {len(changes)}: {changes[-1].__doc__ if changes else 'As it is.'}")
    for key in ours[0]:
        differences = [
            float((a[key] - b[key]).abs().max()) for a, b in zip(ours, theirs, strict=True)
        ]
        print(f"    {key:13}" + "".join(f"{difference:10.1e}" for difference in differences))


def main() -> None:
    """Run."""
    sys.path.insert(0, str(Path(os.environ["PFLLIB"]).absolute() / "system"))
    torch.set_num_threads(1)
    for name in sys.argv[1:] or METHODS:
        compare(name)


if __name__ == "__main__":
    main()
