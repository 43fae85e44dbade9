"""The lock holder of a run folder, and its status."""

import json
import os
import signal
import subprocess
import sys
import time
import warnings

import pytest

from pomona.core.errors import DivergedError, LockedError, StorageError
from pomona.storage.lock import LOCK, locked
from pomona.storage.run_status import (
    STATUS,
    Status,
    exit_code,
    read_status,
    status_after,
    write_status,
)

pytestmark = pytest.mark.long


def test_a_status_reads_back(tmp_path):
    assert read_status(tmp_path) is None
    for status in (
        Status(state="running", round=0),
        Status(state="running", round=7),
        status_after(None, 9),
    ):
        write_status(tmp_path, status)
        assert read_status(tmp_path) == status
    assert [p.name for p in tmp_path.iterdir()] == [STATUS]
    assert json.loads((tmp_path / STATUS).read_text())["state"] == "finished"
    assert abs(read_status(tmp_path).time - time.time()) < 60


@pytest.mark.parametrize(
    ("fault", "state", "code", "reason"),
    [
        (None, "finished", 0, ""),
        (KeyboardInterrupt(), "interrupted", 130, "stopped before the end; resume to continue"),
        (SystemExit(143), "interrupted", 143, "stopped before the end; resume to continue"),
        (DivergedError("client 3,\n round 5"), "failed", 8, "client 3, round 5"),
        (ValueError("a\nb"), "failed", 1, "ValueError: a b"),
    ],
)
def test_a_status_and_the_exit_code_say_the_same(fault, state, code, reason):
    status = status_after(fault, 4)
    assert (status.state, status.code, status.reason, status.round) == (state, code, reason, 4)
    assert exit_code(fault) == code


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"state": "sleeping", "round": 1}', '{"state": "running"}']
)
def test_a_damaged_status_is_named(tmp_path, content):
    (tmp_path / STATUS).write_text(content)
    with pytest.raises(StorageError, match=r"status\.json cannot be read"):
        read_status(tmp_path)


def test_a_status_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    write_status(tmp_path, Status(state="running", round=3))
    for name in ("fsync", "replace"):
        with monkeypatch.context() as patched:
            patched.setattr(
                os, name, lambda *a: (_ for _ in ()).throw(OSError(28, "No space left on device"))
            )
            with pytest.raises(StorageError, match="No space left"):
                write_status(tmp_path, Status(state="running", round=4))
        assert read_status(tmp_path).round == 3
        assert len(list(tmp_path.iterdir())) == 1


def test_a_folder_has_one_holder_at_a_time(tmp_path):
    folder = tmp_path / "new" / "run"
    with locked(folder):
        with (
            pytest.raises(
                LockedError, match=f"{folder} is in use by process {os.getpid()} on "
            ) as raised,
            locked(folder),
        ):
            pass
        assert raised.value.code == 5
        with locked(tmp_path / "other"):
            pass
    with locked(folder):
        pass


def test_a_lock_without_a_name_is_still_a_lock(tmp_path):
    with locked(tmp_path):
        (tmp_path / LOCK).write_text("{")
        with pytest.raises(LockedError, match="is in use; wait"), locked(tmp_path):
            pass


def test_a_place_that_holds_no_lock_is_a_storage_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError), locked(tmp_path / "file"):
        pass
    (tmp_path / LOCK).mkdir()
    with pytest.raises(StorageError), locked(tmp_path):
        pass


HOLDER = """
import os, sys, time
from pathlib import Path
from pomona.storage.lock import locked
with locked(Path(sys.argv[1])):
    if child := os.fork():
        print(child, flush=True)
    else:
        os.close(1)
    time.sleep(60)
"""


def test_a_kill_frees_the_folder_even_while_workers_live(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as holder:
        worker = int(holder.stdout.readline())
        try:
            with pytest.raises(LockedError, match=f"process {holder.pid} "), locked(tmp_path):
                pass
            holder.kill()
            holder.wait()
            os.kill(worker, 0)  # it lives
            with locked(tmp_path):
                pass
        finally:
            holder.kill()
            os.kill(worker, signal.SIGKILL)


def test_a_child_that_ends_does_not_end_its_parents_lock(tmp_path):
    with locked(tmp_path):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        with pytest.raises(LockedError), locked(tmp_path):
            pass
