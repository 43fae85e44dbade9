"""Runs that are killed repeatedly at random moments and resumed each time end like undisturbed
runs.
"""

import hashlib
import json
import os
import signal
import sys
import time
from collections import Counter

import pytest
from runs import CASES, ROUNDS, command_line, outcome, vanished

from pomona.core.files import UNFINISHED
from pomona.core.rng import stream
from pomona.storage import checkpoint
from pomona.storage.run_status import read_status

SEED = 5
TOO_LATE = "after its end"  # too late to count


def found_after_a_kill(folder):
    """Where the kill struck; committed rounds must be whole, and the status must not be ahead of
    them.
    """
    checkpoints = folder / "checkpoints"
    newest, corrupt = checkpoint.newest(checkpoints)
    assert corrupt == {}
    status = read_status(folder)
    committed = newest.number if newest else 0
    if status and status.state == "finished":
        return TOO_LATE, ROUNDS
    if status:
        assert status.state == "running"
        assert committed - 1 <= status.round <= committed
    if newest:
        mark = newest.meta["events"]
        counted = (folder / "events.jsonl").read_bytes()[: mark["bytes"]]
        assert hashlib.sha256(counted).hexdigest() == mark["sha256"]
        assert json.loads(counted.splitlines()[0])["event"] == "start"
    if not (folder / "events.jsonl").exists():
        return "before the record", committed
    if (checkpoints / UNFINISHED).exists():
        return "while a checkpoint was written", committed
    if committed == ROUNDS:
        return "after the last round", committed
    return "in a round", committed


def moment(spawner, process, folder, committed, pace, draws, log):
    """Let a run continue until a random moment of its start or its progress.

    Returns whether it still runs then.

    ``pace``: seconds that it takes to begin, and that a round takes.
    """
    if draws.random() < 0.25:
        return spawner.wait(process, draws.uniform(0, 1.2 * pace[0])) is None
    rounds, fraction = divmod(draws.uniform(committed, ROUNDS + 0.5), 1)
    events, deadline = folder / "events.jsonl", time.monotonic() + 900  # a busy machine
    while time.monotonic() < deadline and spawner.wait(process, 0.003) is None:
        if events.exists() and events.read_text().count('"event": "round"') >= rounds:
            return spawner.wait(process, fraction * pace[1]) is None
    if spawner.wait(process, 0.0) is None:
        os.kill(process, signal.SIGABRT)
        spawner.wait(process)
        raise AssertionError(f"no progress in 15 minutes: {log.read_text()}")
    return False


def killed_and_resumed(spawner, case, folder, pace, draws, limit):
    """Kill a run up to ``limit`` times at random moments, then let it end.

    Returns where the kills struck.
    """
    struck, groups, committed, log = [], [], 0, folder.with_suffix(".log")
    while len(struck) < limit:
        process = spawner.start(command_line(case, folder), log)
        groups.append(process)
        if not moment(spawner, process, folder, committed, pace, draws, log):
            break
        (os.killpg if draws.random() < 0.5 else os.kill)(process, signal.SIGKILL)
        if spawner.wait(process) == 0:
            break  # it ended just before
        stage, committed = found_after_a_kill(folder)
        if stage == TOO_LATE:
            break
        struck.append(stage)
    code, output = spawner.run(command_line(case, folder), log)
    assert code == 0, output
    assert all(vanished(group) for group in groups)
    return struck


def kills(spawner, tmp_path, name, total):
    """Kill runs of a case ``total`` times in total; each ends like an undisturbed one.

    Returns where kills struck.
    """
    case, draws = CASES[name], stream(SEED, "kills", list(CASES).index(name))
    undisturbed = tmp_path / "whole"
    start_time = time.monotonic()
    code, output = spawner.run(command_line(case, undisturbed), tmp_path / "whole.log")
    assert code == 0, output
    events = [json.loads(line) for line in (undisturbed / "events.jsonl").read_text().splitlines()]
    training = sum(e["seconds"] for e in events if e["event"] == "round")
    pace = time.monotonic() - start_time - training, training / ROUNDS
    expected, struck = outcome(undisturbed), Counter()
    for trial in range(10 * total):
        if struck.total() == total:
            break
        folder = tmp_path / f"killed-{trial}"
        limit = min(int(draws.integers(1, 5)), total - struck.total())
        struck.update(killed_and_resumed(spawner, case, folder, pace, draws, limit))
        assert outcome(folder) == expected
        assert read_status(folder).state == "finished"
        assert not list(folder.rglob(UNFINISHED))
    assert struck.total() == total
    return struck


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_thirty_kills(name, spawner, tmp_path, capsys):
    start_time = time.monotonic()
    struck = kills(spawner, tmp_path, name, 30)
    with capsys.disabled():
        sys.stdout.write(
            f"\n{name}: 30 kills in {time.monotonic() - start_time:.0f} s: {dict(struck)}\n"
        )
