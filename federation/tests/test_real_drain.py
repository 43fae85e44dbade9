"""A killed node, a silo that is stopped, and a drained server, in one federation of real processes;
``pytest -m slow federation/tests/test_real_drain.py``.
"""

import time

import pytest

from pomona_federation import status
from pomona_federation.server.registry_admin import uplinks
from pomona_federation.server.study_queue import StudyQueue
from real_federation import check, federation, finished, kill, launched
from test_real_kills import committed, processes_of

pytestmark = pytest.mark.slow
PATIENCE = 15.0


def test_silos_come_and_go_and_a_drained_study_continues_to_the_bit(tmp_path, monkeypatch, capsys):
    with federation(tmp_path / "local", 8, patience=PATIENCE) as local:
        launched(local)
        committed(local, 2)
        start_time = time.monotonic()
        kill(processes_of(local, "node")[:1])
        committed(local, local.status.round + 2)
        back = time.monotonic() - start_time
        assert uplinks(local.server, "silo-1")["unused"] == []

        local.process("silo-2").terminate()
        local.process("silo-2").wait()
        start_time = time.monotonic()
        rows = {row["silo"]: row for row in status.server(local.server)["silos"]}
        assert [rows[name]["connected"] for name in local.names] == [True, True, False]
        committed(local, local.status.round + 1)
        absent = time.monotonic() - start_time
        local.start("silo-2")

        StudyQueue(local.server).drain(enabled=True)
        local.wait(lambda state: state.state == "interrupted")
        drained = local.status.round
        time.sleep(5)
        assert (local.status.round, status.server(local.server)["drain"]) == (drained, "drained")
        StudyQueue(local.server).drain(enabled=False)
        assert local.wait(finished).state == "finished"
        check(local, monkeypatch, complete=False)
        missed = uplinks(local.server, "silo-2")["unused"]
        assert {row["reason"] for row in missed} <= {"not-connected", "not-identified"}
    with capsys.disabled():
        print(  # noqa: T201 - the figures
            f"\nnode killed: two rounds {back:.0f} s; silo stopped: a round {absent:.0f} s"
        )
