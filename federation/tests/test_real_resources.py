"""Real processes with a full disk, a jumping clock, or a temporarily slow silo; minutes each.

``pytest -m slow federation/tests/test_real_resources.py``. Each ends with the models of an
undisturbed simulation, or stops with a code and continues to the same models once there is room
again.
"""

import time
from dataclasses import replace

import pytest

from jumping_clock import jumping_clock
from pomona.core.errors import QuorumError, StorageError
from pomona_federation.audit_log import complete_lines
from real_federation import check, federation, finished, launched, reached, reads_by
from small_disk import small_disk

pytestmark = pytest.mark.slow


def test_a_full_disk_at_the_server_stops_it_and_it_goes_on_with_room(tmp_path, monkeypatch):
    with (
        federation(tmp_path / "local") as local,
        small_disk(local.server / "run", 64 << 20) as disk,
    ):
        mounted = replace(local, folder=disk.root / str(local.folder).lstrip("/"))
        for name in local.names:
            local.start(name)
        local.start("server", disk.before)
        mounted.wait(reached(1))
        disk.fill()
        code = local.process("server").wait(400)
        assert code == StorageError.code
        disk.clear()
        local.start("server", disk.before)
        assert mounted.wait(lambda s: s.state == "finished").state == "finished"
        check(mounted, monkeypatch)


def test_a_full_disk_at_a_silo_costs_it_rounds_and_it_goes_on_with_room(tmp_path, monkeypatch):
    with (
        federation(tmp_path / "local", 8) as local,
        small_disk(local.silo("silo-1") / "state", 48 << 20) as disk,
    ):
        mounted = replace(local, folder=disk.root / str(local.folder).lstrip("/"))
        for owner in ("server", "silo-0", "silo-2"):
            local.start(owner)
        local.start("silo-1", disk.before)
        local.wait(reached(1))
        disk.fill()
        local.wait(
            lambda s: any(
                e["event"] == "unused" for e in complete_lines(local.server / "run" / "audit.jsonl")
            )
        )
        disk.clear()
        assert local.wait(finished).state == "finished"
        cohorts = check(mounted, monkeypatch, complete=False)
    assert (0, 2) in cohorts.values()
    assert cohorts[8] == (0, 1, 2)


@pytest.mark.parametrize("owner", ["server", "silo-1"])
@pytest.mark.parametrize("seconds", [100, -100, 3600])
def test_a_clock_that_jumps_and_is_set_right(owner, seconds, tmp_path, monkeypatch):
    """By a minute or two, which Flower's signatures bear one way, and by an hour, which they do
    not.
    """
    clock, jump = jumping_clock(tmp_path)
    with federation(tmp_path / "local", 10) as local:
        with monkeypatch.context() as patch:
            for name, value in clock.items():
                patch.setenv(name, value)
            local.start(owner)
        for owner_ in {"server", *local.names} - {owner}:
            local.start(owner_)
        local.wait(reached(2))
        jump(seconds)
        limit = time.monotonic() + 40
        local.wait(lambda s: reached(6)(s) or time.monotonic() > limit)
        jump(0)
        status = local.wait(finished)
        if status.state == "failed":
            assert status.code == QuorumError.code
            local.start("server")
            status = local.wait(lambda s: s.state == "finished")
        assert status.state == "finished"
        check(local, monkeypatch, complete=False)


def slow_silo(local, seconds, times=3):
    """Make silo-1 slower by this many seconds, this many times, after a call of the returned
    function.
    """
    line = f"flag.write_bytes(flag.read_bytes()[1:]) or flag.unlink(); time.sleep({seconds})"
    slow = reads_by(local.silo("silo-1"), "slow", line)
    return lambda: slow.write_bytes(bytes(times))


def test_a_silo_that_is_slow_for_three_rounds_is_waited_for(tmp_path, monkeypatch):
    with federation(tmp_path / "local", 6) as local:
        slowly = slow_silo(local, 20)
        launched(local).wait(reached(1))
        slowly()
        assert local.wait(finished).state == "finished"
        check(local, monkeypatch)
        assert not (local.silo("silo-1") / "slow").exists()


def test_a_silo_that_is_too_slow_for_three_rounds_is_absent_and_takes_part_again(
    tmp_path, monkeypatch
):
    with federation(tmp_path / "local", 9, deadline=15.0, patience=15.0) as local:
        slowly = slow_silo(local, 20)
        launched(local).wait(reached(1))
        slowly()
        assert local.wait(finished).state == "finished"
        cohorts = check(local, monkeypatch, complete=False)
        assert not (local.silo("silo-1") / "slow").exists()
    assert 2 <= list(cohorts.values()).count((0, 2)) <= 5
    assert cohorts[9] == (0, 1, 2)
