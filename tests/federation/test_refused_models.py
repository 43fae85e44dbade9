"""A client whose round is refused counts as absent: its file, figures and selection are from an
admitted round.
"""

from dataclasses import replace

import pytest
import torch

import pomona
from pomona.federation.client import ClientRuntime
from problems import equal, tiny

pytestmark = pytest.mark.long

RUN = {"model": {"name": "mlp", "hidden": [8]}, "metric": "accuracy", "lr": 0.5}


@pytest.fixture
def refused(monkeypatch):
    """Rounds in which client 1's uplink contains NaN, although its training is valid."""
    serve, rounds = ClientRuntime._serve, set()

    def poisons(self, visit, ids, received):
        replies = serve(self, visit, ids, received)
        bad = [r.client == 1 and visit.trains and visit.round.number in rounds for r in replies]
        return [
            replace(r, uplink={name: torch.full_like(t, torch.nan) for name, t in r.uplink.items()})
            if poison
            else r
            for r, poison in zip(replies, bad, strict=True)
        ]

    monkeypatch.setattr(ClientRuntime, "_serve", poisons)
    return rounds


def trained(result, client):
    return [f for f in result.final if (f["when"], f["client"]) == ("trained", client)]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("settings", [{"stop": {"patience": 9}}, {"keep": "own_best"}])
def test_file_and_figures_are_those_of_the_last_round_that_counted(
    tmp_path, refused, settings, workers
):
    """Kept in every round, as the run may stop early or chooses: after rounds 3 and 4 client 1
    stands where round 2 left it.
    """
    shorter = pomona.run(tiny("apfl", **RUN, **settings, rounds=2))
    refused |= {3, 4}
    result = pomona.run(
        tiny("apfl", **RUN, **settings, rounds=4, workers=workers), tmp_path / "run"
    )
    assert [len(r.refused) for r in result.rounds] == [0, 0, 1, 1]
    assert equal(result.models[1], shorter.models[1])
    assert trained(result, 1) == trained(shorter, 1)
    assert not equal(result.models[0], shorter.models[0])


def test_a_client_that_no_round_counted_of_in_which_models_are_kept_has_none(tmp_path, refused):
    refused |= {3}
    result = pomona.run(tiny("apfl", **RUN, rounds=3), tmp_path / "run")
    assert sorted(p.name for p in (tmp_path / "run/models").glob("*.safetensors")) == [
        "client-00.safetensors",
        "client-02.safetensors",
        "client-03.safetensors",
    ]
    assert (trained(result, 1), len(trained(result, 0))) == ([], 2)
