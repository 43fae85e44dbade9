"""The share of time in which all workers are busy: by hand, and in a run's summary."""

import json

import pytest
import torch

import pomona
from pomona.core.round import Roster
from pomona.federation.client import ClientRuntime
from pomona.federation.exchange import ClientRequest, Reply
from pomona.federation.stale_models import StaleModels
from pomona.federation.transport import Inline
from pomona.federation.worker_process import Processes
from pomona.federation.workers import Workers
from pomona.methods.base import Rows
from problems import passes, tiny

SECONDS = {0: 4.0, 1: 2.0, 2: 1.0}
NO_MODELS = StaleModels.in_memory({}, None)


class Clock:
    """Clients whose work takes this many seconds."""

    def visit(self, visit, downlink):
        return [Reply(i, seconds=SECONDS[i]) for i in visit.ids]


def test_it_is_what_the_first_one_did_over_what_the_last_one_did(monkeypatch):
    monkeypatch.setattr(ClientRuntime, "visit", Clock.visit)
    # workers of (0) and of (1, 2)
    crew = Processes(lambda groups: Clock())
    transport = Workers(crew, ((0,), (1,), (2,)), [4, 2, 1], 2, NO_MODELS)
    try:
        assert transport.busy_share is None
        for ids, share in (((0, 1, 2), 3 / 4), ((1, 2), 3 / 7), ((0, 2), 4 / 11)):
            visit = ClientRequest(passes("fedavg"), Roster((4, 2, 1)), ids)
            transport.visit(visit, {"model": Rows.broadcast(torch.zeros(1), len(ids))})
            assert transport.busy_share == pytest.approx(share)
    finally:
        transport.close()


def test_one_process_has_none():
    assert Inline(lambda groups: Clock(), ((0,),)).busy_share is None


@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_of_several_workers_reports_it(workers, tmp_path):
    pomona.run(tiny("fedavg", workers=workers), tmp_path / "run")
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert ("busy_share" in summary) == (workers == 2)
    assert 0 <= summary.get("busy_share", 0) <= 1
    assert pomona.load(tmp_path / "run").summary.get("busy_share") == summary.get("busy_share")
