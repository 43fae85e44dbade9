"""A few clients with small tables, a network, and the private objective over them."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pomona.core.rng import stream
from pomona.core.round import Roster, Round
from pomona.core.training_settings import Passes
from pomona.data.dataset import Dataset, RowGroups
from pomona.federation.client import ClientRuntime
from pomona.federation.exchange import ClientRequest, stack
from pomona.methods.base import Initial, Method
from pomona.models import ModelSettings, build
from pomona.models.parameter_space import ParameterSpace
from pomona.objective.batches import Pass
from pomona.objective.dataset import DeviceDataset
from pomona.objective.private import PrivateObjective
from pomona.objective.pytorch import TorchObjective
from pomona.partition.partition import ClientRows, Partition
from pomona.privacy.settings import Privacy
from pomona.tasks import TASKS
from pomona.tasks.criterion import criterion
from problems import a_round

FEATURES, CLASSES = 6, 3
RELEASES = ("sample-counts", "metrics", "validation-losses", "unlimited-epsilon")


def privacy(**overrides) -> Privacy:
    base = {
        "noise_multiplier": 1.0,
        "max_grad_norm": 0.7,
        "delta": 1e-5,
        "accountant": "rdp",  # the faster one
        "acknowledge": RELEASES,
        "seed": 5,
    }
    return Privacy(**{**base, **overrides})


@dataclass
class Problem:
    """The parts of a test: the objective, its space, an initial row, and the clients' sizes."""

    objective: PrivateObjective
    inner: TorchObjective
    space: ParameterSpace
    module: torch.nn.Module
    row: Tensor
    sizes: tuple[int, ...]

    def batch(
        self,
        client: int = 0,
        round_: int = 1,
        size: int = 4,
        epochs: int = 1,
        purpose: str = "training",
    ):
        """All batches of a pass."""
        rows = self.objective.data.rows["train"][client]
        return list(
            self.objective.batches(rows, Pass(0, purpose, round_, client, Passes(epochs), size))
        )


def problem(
    folder: Path,
    settings: Privacy,
    sizes=(12, 9),
    data_seed=1,
    model="mlp",
    chunk=None,
    groups=None,
) -> Problem:
    """``groups``: of all samples in order, if there are groups."""
    n = sum(sizes)
    draw = stream(data_seed, "data")
    x, y = draw.normal(size=(n, FEATURES)).astype(np.float32), draw.integers(0, CLASSES, n)
    row_groups = None if groups is None else RowGroups("patient", np.asarray(groups, np.int64))
    dataset = Dataset("noise", "table", x, y, tuple("abc"), n, groups=row_groups)
    boundaries = np.cumsum(sizes)
    clients = tuple(
        ClientRows(np.arange(e - s, e), np.arange(e - s, e)[: min(s, 2)], np.arange(0, 2))
        for e, s in zip(boundaries, sizes, strict=True)
    )
    widths = {"hidden": (4,)} if model == "mlp" else {}
    choice = ModelSettings(name=model, **widths)
    module = build(choice, (FEATURES,), CLASSES, seed=3)
    space = ParameterSpace(module)
    data = DeviceDataset.build(dataset, Partition(clients, {}), "classes")
    inner = TorchObjective(module, space, data, criterion(choice, TASKS["classes"]))
    module_copy = build(choice, (FEATURES,), CLASSES, seed=3)
    objective = PrivateObjective(inner, module_copy, space, settings, folder, chunk)
    return Problem(objective, inner, space, module_copy, space.pack(module), tuple(sizes))


def rounds(
    method: Method, p: Problem, count: int, **overrides: float
) -> tuple[ClientRuntime, object, list]:
    """Train a method for some rounds: the clients, the server's state, and every reply in order."""
    roster, ids = Roster(p.sizes), tuple(range(len(p.sizes)))
    initial = Initial(lambda _: p.row.clone(), p.space.layers, head=p.space.head)
    clients = ClientRuntime(method.client, p.objective, initial, tuple((i,) for i in ids), 0)
    server, replies = method.server.start(initial, roster, 0), []
    clients.add_clients(ids, roster, None)
    for number in range(1, count + 1):
        round_: Round = a_round(
            number, **{"batch_size": 4, "epochs": 2, "total": count, **overrides}
        )
        visit = ClientRequest(round_, roster, ids, True, frozenset({"received", "trained"}))
        got = clients.visit(visit, method.server.downlink(server, ids, roster, round_))
        server = method.server.aggregate(
            server, stack(got, lambda r: r.uplink), ids, roster, round_
        )
        clients.commit(ids)
        replies += got
    return clients, server, replies
