"""Child processes that leave nothing behind, and the environment in which Flower's run."""

import ctypes
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import current_thread, main_thread

from pomona.core.errors import StorageError
from pomona.storage.lock import LOCK, Holder, said

# Nothing is sent to Flower's makers, nothing is installed while a federation runs, and no header of a request may
# name another address than the one that it comes from.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FORWARDED_ALLOW_IPS": "",
}
PROXIES = {"http_proxy", "https_proxy", "all_proxy"}
LOCAL = ("localhost", "127.0.0.1", "::1")
LOG_LIMIT = 20_000_000  # bytes of a log file before it is set aside
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36

Identity = tuple[int, int]  # process id and start time: the kernel uses ids again


def environment(home: Path, proxy: str = "") -> dict[str, str]:
    """What a Flower process sees: Flower's folder, this installation's commands, and the proxy that was set, if any."""
    kept = {
        k: v for k, v in os.environ.items() if not k.startswith("FLWR_") and k.lower() not in PROXIES | {"no_proxy"}
    }
    scripts = sysconfig.get_path("scripts")
    ours = {"FLWR_HOME": str(home), "PATH": os.pathsep.join([scripts, os.environ.get("PATH", os.defpath)])}
    way = {"HTTPS_PROXY": proxy, "HTTP_PROXY": proxy} if proxy else {}
    return {**kept, **QUIET, **ours, **way, "NO_PROXY": ",".join(LOCAL), "PYTHONUNBUFFERED": "1"}


def start(command: Sequence[str], log: Path, env: dict[str, str]) -> subprocess.Popen[bytes]:
    """A child in a process group of its own, whose output is appended to a log that only its owner reads."""
    log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    trim(log)
    handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=handle, stderr=handle, env=env, start_new_session=True
        )
    finally:
        os.close(handle)


def trim(log: Path) -> None:
    """Set a log that has grown long aside as LOG.1, also while it is written (its writers append)."""
    with suppress(OSError):
        if log.stat().st_size > LOG_LIMIT:
            shutil.copy(log, log.with_name(f"{log.name}.1"))
            os.truncate(log, 0)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def adopt() -> None:
    """Become the parent of orphaned descendants, so that none is lost sight of (Linux), until ``disown``."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def disown() -> None:
    """Leave orphans to whoever takes them otherwise, after a last look at those that are here."""
    reap()
    _prctl(PR_SET_CHILD_SUBREAPER, 0)


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent is gone, however that ended (Linux)."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def family(pid: int) -> dict[Identity, str]:
    """All living descendants of a process, with their command lines; zombies do not live. Empty without ``/proc``."""
    children: dict[int, list[tuple[Identity, str]]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            state, parent, *rest = (entry / "stat").read_text().rpartition(")")[2].split()
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if state not in "ZX":
                children.setdefault(int(parent), []).append(((int(entry.name), int(rest[17])), command))
    found: dict[Identity, str] = {}
    ahead = [pid]
    while ahead:
        for identity, command in children.get(ahead.pop(), []):
            found[identity] = command
            ahead.append(identity[0])
    return found


def end(living: Callable[[], Collection[Identity]], first: Iterable[Identity] = (), patience: float = 2.5) -> None:
    """End processes by id: ask, wait, and kill what is left; ``first`` are asked a second before the others.

    Returns when none lives, at most a second after ``patience`` seconds.
    """
    began = time.monotonic()
    early = set(first) & set(living())
    _signal(early, signal.SIGTERM)
    while early & set(living()) and time.monotonic() < began + 1:
        time.sleep(0.1)
    asked: set[Identity] = set(early)
    while (left := set(living())) and time.monotonic() < began + patience:
        _signal(left - asked, signal.SIGTERM)
        asked |= left
        time.sleep(0.1)
    while (left := set(living())) and time.monotonic() < began + patience + 1:
        _signal(left, signal.SIGKILL)
        time.sleep(0.1)


def _signal(identities: Iterable[Identity], number: signal.Signals) -> None:
    for pid, _ in identities:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Put off signals while processes are ended, which is quick."""
    if current_thread() is not main_thread():
        yield
        return
    before = {s: signal.signal(s, signal.SIG_IGN) for s in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def reap(own: Collection[int] = ()) -> None:
    """Take leave of ended children that were adopted; those in ``own`` have a Popen that does it."""
    for task in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError, ValueError):
            for pid in map(int, task.read_text().split()):
                if pid not in own:
                    with suppress(ChildProcessError):
                        os.waitpid(pid, os.WNOHANG)


def holder(folder: Path, patience: float = 1.0) -> Holder | None:
    """Who holds a folder's lock, as ``federation.lock`` wrote it; None if nobody does.

    Raises StorageError if somebody does, but the file still names no process after ``patience`` seconds: one that has
    just taken the lock is about to write its name.
    """
    path, until = folder / LOCK, time.monotonic() + patience
    try:
        with path.open("rb") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    with suppress(ValueError):
                        return said(file.fileno())
                else:
                    return None
                if time.monotonic() > until:
                    break
                time.sleep(0.05)
    except OSError:
        return None
    raise StorageError(
        f"{path} is locked, but what it holds names no process; find the one that has it open (`fuser {path}`) and "
        "stop that"
    )


def ask_to_stop(folder: Path, patience: float = 15.0) -> bool:
    """Ask the process that holds a folder to stop, and wait until it has. False if nobody held it, or still does.

    Raises StorageError where the lock names no process, or the machine's or container's first one.
    """
    found = holder(folder)
    if not found or found.host != os.uname().nodename or not _holds(found.pid, folder / LOCK):
        return False
    if found.pid == 1:
        raise StorageError(
            f"{folder / LOCK} names process 1, which is not signalled; stop the machine's service or container"
        )
    with suppress(ProcessLookupError):
        os.kill(found.pid, signal.SIGTERM)
    until = time.monotonic() + patience
    while (still := holder(folder)) and time.monotonic() < until:
        time.sleep(0.1)
    return not still


def _holds(pid: int, lock: Path) -> bool:
    """Whether a process has a file open: a container's process id may be another process here."""
    if sys.platform != "linux":
        return True
    for handle in (Path("/proc") / str(pid) / "fd").glob("*"):
        with suppress(OSError):
            if handle.stat().st_ino == lock.stat().st_ino and handle.samefile(lock):
                return True
    return False
