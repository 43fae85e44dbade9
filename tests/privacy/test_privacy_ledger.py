"""The write-ahead ledger and the key: recovery, refusals, and the state after a kill."""

import errno
import json
import os
import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from private_problem import privacy, problem, rounds

from pomona.core.errors import ConfigError, LockedError, PrivacyError, StorageError
from pomona.methods import METHODS
from pomona.privacy.accounting import Event
from pomona.privacy.ledger import Draw, Head, Ledger, LedgerEntry, Position
from pomona.privacy.noise import KeyStore, require_sole

pytestmark = pytest.mark.long


def entry(step=0, release="a", sigma=1.0, round_=1):
    return LedgerEntry(Draw(round_, "training", step, 20, 5), sigma, release)


def ledger(folder, *entries):
    path = folder / "ledger.jsonl"
    Ledger.create(path, Head(0, "k", None))
    opened = Ledger.open(path)
    for e in entries:
        opened.append(e)
    return opened


def path(folder):
    return folder / "ledger.jsonl"


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abcdef")), max_size=12))
@settings(max_examples=25)
def test_what_was_written_is_read_again(tmp_path_factory, written):
    folder = tmp_path_factory.mktemp("ledger")
    entries = [entry(step, f"{step}{name}") for step, name in written]
    first = ledger(folder, *entries)
    history, position = first.history(), first.position()
    del first
    reopened = Ledger.open(path(folder))
    assert (reopened.history(), reopened.position()) == (history, position)
    assert position.entries == len({e.release for e in entries})  # a known release costs nothing
    per_batch = [len({e.release for e in entries if e.draw.step == s}) for s in range(4)]
    expected = {k: per_batch.count(k) for k in set(per_batch) - {0}}
    assert {round(e.sigma**-2): c for e, c in reopened.history().items()} == expected
    assert all(e.q == 0.25 for e in reopened.history())


def test_several_releases_of_one_batch_are_one_event_with_less_noise(tmp_path):
    assert ledger(tmp_path, entry(0, "a"), entry(0, "b"), entry(1, "c")).history() == {
        Event(2**-0.5, 0.25): 1,
        Event(1.0, 0.25): 1,
    }


def test_every_changed_missing_or_moved_line_is_found(tmp_path):
    ledger(tmp_path, *(entry(s, str(s)) for s in range(4)))
    lines = path(tmp_path).read_text().splitlines(keepends=True)
    damaged = [lines[:k] + lines[k + 1 :] for k in range(len(lines) - 1)]
    damaged += [lines[:2] + lines[3:4] + lines[2:3] + lines[4:], [*lines, lines[-1]]]
    damaged += [
        [
            line.replace('"sigma": 1.0', '"sigma": 9.0') if k == j else line
            for j, line in enumerate(lines)
        ]
        for k in range(1, 5)
    ]
    damaged += [["not JSON\n"], ["[]\n"], []]
    for content in damaged:
        path(tmp_path).write_text("".join(content))
        with pytest.raises(PrivacyError, match="restore it"):
            Ledger.open(path(tmp_path))


def test_every_flipped_bit_is_found(tmp_path):
    ledger(tmp_path, entry(0, "a"), entry(1, "b"))
    content = path(tmp_path).read_bytes()
    # the last line's own end is a torn line when flipped
    body = content[: content.rindex(b"\n", 0, -1)]
    for position in range(0, len(body), 3):
        flipped = bytearray(content)
        flipped[position] ^= 1 << (position % 8)
        path(tmp_path).write_bytes(bytes(flipped))
        with pytest.raises(PrivacyError):
            Ledger.open(path(tmp_path))


def test_a_checkpoint_notices_a_ledger_that_was_rolled_back_or_replaced(tmp_path):
    complete = ledger(tmp_path, *(entry(s, str(s)) for s in range(3)))
    middle = complete.position()
    complete.append(entry(3, "3"))
    latest = complete.position()
    complete.require(middle)  # what came after the checkpoint is there to be found again
    complete.require(latest)
    lines = path(tmp_path).read_text().splitlines(keepends=True)
    del complete
    path(tmp_path).write_text("".join(lines[:-1]))
    truncated = Ledger.open(path(tmp_path))
    truncated.require(middle)
    with pytest.raises(PrivacyError, match="rolled back"):
        truncated.require(latest)
    del truncated
    (tmp_path / "other").mkdir()
    unrelated = ledger(tmp_path / "other", *(entry(s, f"x{s}") for s in range(5)))
    for position in (middle, latest):
        with pytest.raises(PrivacyError, match="rolled back or replaced"):
            unrelated.require(position)
    fresh = KeyStore.open(tmp_path / "fresh", 0, privacy())
    with pytest.raises(PrivacyError, match="0 entries"):
        fresh.ledger.require(Position(*json.loads(json.dumps(latest))))


def test_a_torn_last_line_is_a_release_that_was_never_made(tmp_path):
    ledger(tmp_path, entry(0, "a"))
    shorter = path(tmp_path).read_bytes()
    ledger_ = Ledger.open(path(tmp_path))
    ledger_.append(entry(1, "b"))
    longer = path(tmp_path).read_bytes()
    del ledger_
    for length in range(len(shorter), len(longer)):
        path(tmp_path).write_bytes(longer[:length])
        opened = Ledger.open(path(tmp_path))
        assert opened.position().entries == 1
        opened.append(entry(1, "b"))
        assert path(tmp_path).read_bytes() == longer
        del opened


def test_a_full_disk_stops_the_release_and_leaves_the_ledger_whole(tmp_path, monkeypatch):
    store = KeyStore.open(tmp_path, 0, privacy())
    file = tmp_path / "client-00" / "ledger.jsonl"
    content = file.read_bytes()

    def fail(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StorageError, match="not made"):
        store.release(Draw(1, "training", 0, 10, 5), torch.zeros(2), torch.zeros(2).double())
    assert file.read_bytes() == content
    assert store.position().entries == 0


def test_one_process_at_a_time(tmp_path):
    opened = ledger(tmp_path)
    with pytest.raises(LockedError):
        Ledger.open(path(tmp_path))
    assert opened.position().entries == 0


def test_key_and_ledger_belong_together(tmp_path):
    secret = privacy(seed=None)
    draw, zero = Draw(1, "training", 0, 10, 5), torch.zeros(2)
    for client in (0, 1):
        KeyStore.open(tmp_path, client, secret).release(draw, zero, zero.double())
    folder, other_folder = tmp_path / "client-00", tmp_path / "client-01"
    for file in ("key", "ledger.jsonl"):
        assert (folder / file).stat().st_mode & 0o777 == 0o600
        (folder / file).rename(tmp_path / "aside")
        with pytest.raises(PrivacyError, match="restore"):
            KeyStore.open(tmp_path, 0, secret)
        (folder / file).write_bytes((other_folder / file).read_bytes())
        (folder / file).chmod(0o600)
        with pytest.raises(PrivacyError, match="another client or key"):
            KeyStore.open(tmp_path, 0, secret)
        (tmp_path / "aside").rename(folder / file)
    assert KeyStore.open(tmp_path, 0, secret).position().entries == 1
    (folder / "key").chmod(0o644)
    with pytest.raises(PrivacyError, match="chmod 600"):
        KeyStore.open(tmp_path, 0, secret)
    (folder / "key").chmod(0o600)
    (folder / "key").write_text("abc")
    with pytest.raises(PrivacyError, match="not a key"):
        KeyStore.open(tmp_path, 0, secret)


def test_a_beginning_that_was_cut_short_begins_again(tmp_path):
    KeyStore.open(tmp_path, 0, privacy(seed=None))
    (tmp_path / "client-00" / "key").unlink()
    assert KeyStore.open(tmp_path, 0, privacy(seed=None)).position().entries == 0


@pytest.mark.parametrize(("first", "second"), [(None, 5), (5, None), (5, 6)])
def test_a_test_seed_and_a_secret_key_do_not_mix(tmp_path, first, second):
    KeyStore.open(tmp_path, 0, privacy(seed=first))
    with pytest.raises(ConfigError, match="give a new folder"):
        KeyStore.open(tmp_path, 0, privacy(seed=second))


KILLED = """
import os, signal, sys, torch
from pathlib import Path
from pomona.privacy import noise
from pomona.privacy.ledger import Draw
from private_problem import privacy
store = noise.KeyStore.open(Path(sys.argv[1]), 0, privacy(seed=None))
store.release(Draw(1, "training", 0, 10, 5), torch.zeros(3), torch.ones(4).double())
noise.gaussian = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
store.release(Draw(1, "training", 1, 10, 5), torch.zeros(3), torch.ones(4).double())
"""


def test_a_key_store_whose_creation_was_interrupted_is_created_anew(tmp_path):
    """No byte can be written at first; whoever finds a ledger finds all of its head."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        with pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
            KeyStore.open(tmp_path, 0, privacy())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert KeyStore.open(tmp_path, 0, privacy()).position().entries == 0


def test_a_kill_between_ledger_and_noise_costs_the_release_once(tmp_path):
    folder = Path(__file__).parent
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder.parent), str(folder), *sys.path]),
    }
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path)], env=environment, check=False
    )
    assert process.returncode == -signal.SIGKILL
    store = KeyStore.open(tmp_path, 0, privacy(seed=None))
    assert store.position().entries == 2  # it was written down before it could be used
    cost = store.epsilon()
    releases = [
        store.release(Draw(1, "training", s, 10, 5), torch.zeros(3), torch.ones(4).double())
        for s in (0, 1)
    ]
    assert (store.position().entries, store.epsilon()) == (2, cost)
    assert not torch.equal(*releases)


def test_a_run_that_is_stopped_and_repeated_releases_the_same_and_pays_once(tmp_path):
    """Round 2 is made twice, as after a kill before its checkpoint: same uploads, same epsilon."""
    method = METHODS["apple"](dr_lr=0.1).method()
    uninterrupted = problem(tmp_path / "whole", privacy())
    _, _, replies = rounds(method, uninterrupted, 3)
    rounds(method, problem(tmp_path / "parts", privacy()), 2)
    resumed = problem(tmp_path / "parts", privacy())
    middle = resumed.objective.position(0)
    _, _, resumed_replies = rounds(method, resumed, 3, total=3)
    resumed.objective.require(0, middle)
    for first, second in zip(replies, resumed_replies, strict=True):
        assert all(torch.equal(first.uplink[k], second.uplink[k]) for k in first.uplink)
    for client in (0, 1):
        assert resumed.objective.epsilon(client) == uninterrupted.objective.epsilon(client)
        assert resumed.objective.position(client) == uninterrupted.objective.position(client)


def test_a_key_store_that_a_checkpoint_knows_is_not_made_anew(tmp_path):
    """Neither key nor ledger appears where they are missing: whoever restores them overwrites
    nothing.
    """
    first = problem(tmp_path / "key-stores", privacy(seed=None))
    rounds(METHODS["fedavg"]().method(), first, 1)
    position = first.objective.position(0)
    del first
    folder = tmp_path / "key-stores" / "client-00"
    contents = {file.name: file.read_bytes() for file in folder.iterdir()}
    for file in folder.iterdir():
        file.unlink()
    with pytest.raises(
        PrivacyError, match=f"a checkpoint records {position.entries} entries; restore both"
    ):
        problem(tmp_path / "key-stores", privacy(seed=None)).objective.require(0, position)
    assert list(folder.iterdir()) == []
    for name, content in contents.items():
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o600)
    problem(tmp_path / "key-stores", privacy(seed=None)).objective.require(0, position)


def test_one_account_of_one_data_set(tmp_path):
    require_sole(tmp_path, 3)
    KeyStore.open(tmp_path, 3, privacy())
    require_sole(tmp_path, 3)
    with pytest.raises(PrivacyError, match="holds client-03 next to client-00"):
        require_sole(tmp_path, 0)
