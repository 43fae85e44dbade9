"""SIGKILL of each process in each of 10 moments of a round; ``pytest -m slow
federation/tests/test_real_kills.py``.

One federation per process, killed once a round: the k-th time in the k-th tenth of a round after a
commit; the tree of the sources draws where in it. Whatever is hit, the federation ends with the
models of an undisturbed simulation, and every silo took part in every round.
"""

import sys
import time
from collections import Counter
from statistics import median

import pytest

from pomona.record.run_folder import load
from real_federation import check, federation, kill, launched
from representatives import number

pytestmark = pytest.mark.slow
MOMENTS = 10
MEASURED = 3  # rounds from which the length of a round is taken
LATER = 300.0  # seconds within which the next round must be committed
OWNERS = dict.fromkeys(("supervisor", "SuperLink", "ServerApp"), "server") | {
    "node": "silo-1",
    "worker": "silo-1",
}


def committed(local, number, seconds=LATER):
    """Return as soon as a round is committed.

    Fails if the federation ends before, or nothing happens.
    """
    limit = time.monotonic() + seconds
    while local.status is None or local.status.round < number:
        assert local.status is None or local.status.state in {"running", "interrupted"}, (
            local.status
        )
        assert time.monotonic() < limit, (
            f"round {number} was not committed in {seconds:.0f} s: {local.status}"
        )
        time.sleep(0.005)


def processes_of(local, kind):
    """The processes of a kind, of which there may be none for a moment."""
    limit = time.monotonic() + LATER
    while not (processes := local.find(kind, OWNERS[kind])):
        assert time.monotonic() < limit, f"no {kind}"
        time.sleep(0.05)
    return processes


def killed(local, kind, kills):
    """Kill a process, ``kills`` times already, and do what only a person would.

    Returns what it was doing, as far as visible.
    """
    if kind == "node" and kills == MOMENTS // 2:
        # each failure doubles the time until the next start; a silo started anew forgets them
        local.process("silo-1").terminate()
        local.process("silo-1").wait()
        local.start("silo-1")
    busy = bool(local.find("ClientApp", "silo-1"))
    kill(processes_of(local, kind)[:1])
    if kind == "supervisor":
        local.process("server").wait()
        local.start("server")
    return "while silo-1 worked" if busy else "while it did not"


@pytest.mark.parametrize("kind", OWNERS)
def test_a_process_is_killed_in_every_moment_of_a_round(kind, tmp_path, monkeypatch, capsys):
    start_time, struck, share = time.monotonic(), Counter(), number("kills") / 2**32
    with federation(tmp_path / "local", MEASURED + 3 * MOMENTS) as local:
        launched(local)
        committed(local, MEASURED)
        pace = median(r.seconds for r in load(local.server / "run").rounds[1:])
        for k in range(MOMENTS):
            committed(local, local.status.round + 1)
            time.sleep(pace * (k + share) / MOMENTS)
            struck[killed(local, kind, k)] += 1
        assert local.wait(lambda s: s.state in {"finished", "failed"}).state == "finished"
        check(local, monkeypatch)
    with capsys.disabled():
        seconds = time.monotonic() - start_time
        sys.stdout.write(
            f"\n{kind}: {MOMENTS} moments of {pace:.1f} s, {seconds:.0f} s: {dict(struck)}\n"
        )
