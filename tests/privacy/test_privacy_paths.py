"""Each path on which noised numbers leave a client, attacked with a canary in and out: the lower
bound of epsilon that the attack proves is below the ledger's, and the attack is no empty one.

    pytest -m slow -s tests/privacy/test_privacy_paths.py    # 1,000 draws of the noise each way; prints the table
"""

from dataclasses import dataclass, field
from unittest.mock import patch

import numpy as np
import pytest
import torch
from private_problem import privacy, problem
from test_privacy_audit import DELTA, lower_bound

from pomona.core.round import Roster
from pomona.federation.client import ClientRuntime
from pomona.federation.exchange import ClientRequest
from pomona.methods import METHODS
from pomona.methods.base import Initial
from pomona.privacy.accounting import epsilon, of_groups
from pomona.privacy.noise import KeyStore
from problems import a_round

DRAWS, ROWS, C = 1000, 9, 1e-2  # every gradient is longer than C


@dataclass(frozen=True)
class Path:
    """How numbers leave: the method, and the terms of privacy.

    Attributes:
        patient: rows of client 0, from its first, which are the canary.
        size: of a batch; all rows, without sampling, or fewer.
        clients: whose uplinks are seen as one sum; 1 for client 0's alone.
        min_share: share of the ledger's epsilon that the attack has to prove.
    """

    method: str = "fedavg"
    terms: dict = field(default_factory=dict)
    patient: int = 1
    size: int = ROWS
    clients: int = 1
    min_share: float = 0.1


PATHS = {
    "FedAvg, a row": Path(),
    "FedAvg, a row, sampled": Path(size=5, min_share=0.02),
    "Ditto, a row": Path("ditto"),
    "APPLE, a row": Path("apple"),
    "FedAvg, a group of four, unit group": Path(terms={"unit": "group"}, patient=4, min_share=0.03),
    # the attack has no power here: it shows only that the ledger is not exceeded
    "FedAvg, a group of four, unit row": Path(
        patient=4, terms={"noise_multiplier": 4.0}, min_share=-0.3
    ),
    "a sum, two honest clients": Path(terms={"honest": 2}, clients=2),
    "a sum, three honest clients": Path(terms={"honest": 3}, clients=3, min_share=0.02),
}


def views(path, folder, present, draws):
    """What an attacker sees along the canary's gradient, in rounds from the same state; and the
    ledger's history of one of them.
    """
    terms = privacy(max_grad_norm=C, accountant="prv", **path.terms)
    groups = np.maximum(np.arange(ROWS * path.clients) - path.patient + 1, 0)
    grouped = groups if "unit" in path.terms else None
    p = problem(folder, terms, (ROWS,) * path.clients, groups=grouped)
    _, gradient = p.objective.clipped_sum(p.row, torch.arange(path.patient))
    draw = KeyStore.batch

    def without_canary(store, request, groups=None):
        rows = draw(store, request, groups)
        return rows if present or store.client else rows[rows >= path.patient]

    method = METHODS[path.method]().method()
    ids = tuple(range(path.clients))
    roster = Roster(p.sizes)
    initial = Initial(lambda _: p.row.clone(), p.space.layers, head=p.space.head)
    projections = []
    # what lasts on a disk is tested elsewhere
    with patch.object(KeyStore, "batch", without_canary), patch("os.fsync"):
        for number in range(1, draws + 1):
            clients = ClientRuntime(
                method.client, p.objective, initial, tuple((i,) for i in ids), 0
            )
            server = method.server.start(initial, roster, 0)
            clients.add_clients(ids, roster, None)
            round_ = a_round(number, batch_size=path.size, epochs=1, total=draws, lr=1.0)
            downlink = method.server.downlink(server, ids, roster, round_)
            got = clients.visit(ClientRequest(round_, roster, ids), downlink)
            models = [t for r in got for t in r.uplink.values() if t.numel() == p.row.numel()]
            change = sum(model.flatten().double() - p.row.double() for model in models)
            projections.append(-float(change @ gradient))
    history = p.objective._key_stores[0].ledger.history()
    return np.array(projections), {event: count // draws for event, count in history.items()}


def audit(path, folder, draws):
    """The proven and the ledger's epsilon of a round."""
    outside, _ = views(path, folder / "out", False, draws)
    inside, history = views(path, folder / "in", True, draws)
    rows = 1 if "unit" in path.terms else path.patient
    claimed = epsilon(privacy(accountant="prv", delta=DELTA), of_groups(history, rows))
    return lower_bound(outside, inside, 0.025), claimed


@pytest.mark.slow
@pytest.mark.parametrize("name", PATHS)
def test_no_path_reveals_more_than_the_ledger_says(name, tmp_path, capsys):
    pytest.importorskip("opacus")
    proven, claimed = audit(PATHS[name], tmp_path, DRAWS)
    with capsys.disabled():
        print(f"\n{name}: at least {proven:.2f}, the ledger's {claimed:.2f}")  # noqa: T201
    assert PATHS[name].min_share * claimed < proven <= claimed


@pytest.mark.slow
def test_the_audit_finds_a_ledger_that_counts_too_little(tmp_path):
    """A sum of one honest client whose ledger counts the noise of a hundred."""
    path = Path(terms={"honest": 100, "noise_multiplier": 1.0})
    proven, claimed = audit(path, tmp_path, DRAWS)
    assert proven > claimed
