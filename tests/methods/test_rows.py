"""Several clients in one call come out as each of them alone, ragged passes included."""

from dataclasses import fields, is_dataclass

import pytest
import torch
from torch.testing import assert_close

from pomona.federation.clients import cut, each, tensors
from pomona.methods.customised import FedAvgC, FedProxC
from pomona.methods.fedala import FedAla
from pomona.methods.fedphp import FedPHP
from pomona.methods.fedrep import FedRep
from pomona.methods.lgfedavg import LGFedAvg
from pomona.methods.partialfed import PartialFed
from pomona.methods.perfedavg import PerFedAvg
from pomona.objective.cohort import Cohort
from problems import Federation, Quadratics, a_round, quadratics

SETTINGS = [
    FedAvgC(),
    FedProxC(mu=0.5),
    FedAla(layers=2, stage_epochs=15),
    PerFedAvg(),
    PerFedAvg(order="hf"),
    FedRep(),
    LGFedAvg(),
    FedPHP(),
    PartialFed(),
    PartialFed(rule="lower-shared"),
]
ROUND = {"batch_size": 5, "epochs": 2, "momentum": 0.5, "lr": 0.05}


def joined(states):
    """States of one client each as one of all: tensors along the leading axis."""
    first = states[0]
    if isinstance(first, torch.Tensor):
        return torch.cat(states)
    if is_dataclass(first):
        return type(first)(**{f.name: joined([getattr(s, f.name) for s in states]) for f in fields(first)})
    return first


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: f"{s.name}{sum(map(ord, str(s))) % 97}")
def test_rows_together_are_rows_alone(settings):
    flat = quadratics(1, samples=27)
    problem = Quadratics(flat.targets, [list(range(15)), list(range(15, 23)), list(range(23, 27))])  # longest first
    run = Federation(settings.method(), problem)
    for number in (1, 2):
        run.round(a_round(number, **ROUND))
    round_ = a_round(3, **ROUND)
    down = run.method.server.down(run.server, run.ids, round_)
    moments = frozenset({"received", "trained"})

    def serve(ids, state, received):
        cohort = Cohort(problem, ids, run.roster, round_, watched=moments)
        state, uplink, info = run.method.client.train(each(torch.clone, state), received, cohort, round_)
        return tensors(state), uplink, info, cohort.observed

    states = [run.state(i) for i in run.ids]
    alone = [serve((i,), states[i], cut(down, i)) for i in run.ids]
    together = serve(run.ids, joined(states), {name: rows.bank[rows.index] for name, rows in down.items()})
    for kind, found in enumerate(together):
        assert found.keys() == alone[0][kind].keys()
        for name, rows in found.items():
            assert_close(rows, torch.cat([part[kind][name] for part in alone]))
