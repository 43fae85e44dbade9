"""States in files need memory for one client's state: 231 MB of them beside less than 60 MB that
cannot be freed.
"""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from time import sleep

import pytest
import state_memory_run
from state_memory_run import STATES, STOPPED

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="memory is looked at in /proc")
DISK = "/var/tmp"  # TMPDIR and tmp_path may lie in memory, whose files count as such
MAX_GROWTH = 60_000_000  # a process may take, all told, beyond its imports


def memory_of(pid):
    """Bytes of a process that the system cannot reclaim: private memory, and memory shared between
    processes.
    """
    with suppress(OSError):  # it may have ended
        fields = dict(
            line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        )
        return sum(
            int(fields[key].split()[0]) * 1024 for key in ("RssAnon", "RssShmem") if key in fields
        )
    return 0


def family(pid):
    """A process and its children."""
    with suppress(OSError):
        return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    return []


def watched(folder, share, workers, stop=0):
    """A run, resumed if started: (exit code, bytes in files, peak of one process beyond
    imports).
    """
    command = [sys.executable, state_memory_run.__file__]
    command += map(str, (folder, share, workers, stop))
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "TMPDIR": DISK}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout.readline() == "ready\n"
        initial, peak = memory_of(process.pid), 0
        while process.poll() is None:
            peak = max(peak, *map(memory_of, family(process.pid)), 0)
            sleep(0.02)
        return process.returncode, int(process.stdout.read() or 0), peak - initial


@LINUX
@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_states_in_files_take_memory_for_one_client_at_a_time(workers, tmp_path):
    code, _, growth = watched(tmp_path / "run", 1e-15, workers, stop=2)
    assert code == STOPPED
    assert next((tmp_path / "run/checkpoints").iterdir()).stat().st_size > STATES
    assert growth < MAX_GROWTH
    code, files, growth = watched(tmp_path / "run", 1e-15, workers)
    assert (code, files >= STATES) == (0, True)
    assert growth < MAX_GROWTH


@LINUX
@pytest.mark.slow
def test_states_in_memory_are_seen_there(tmp_path):
    code, files, growth = watched(tmp_path / "run", 1.0, 1)
    assert (code, files) == (0, 0)
    assert growth > STATES
