"""A silo's node: ``python -m pomona_federation.silo.node KIT APP``; APP is the SHA-256 of the
pinned app.

It holds the connection to the server's SuperLink as Flower's SuperNode does, with Flower's own
client, but loads no code that the server sends: the app of every run must have the SHA-256 in the
silo's kit, and what answers is the installed package, in a separate worker process. The
two share a pair of sockets; nothing listens on a port.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from pomona.core.bounds import DIGEST, plain
from pomona.core.errors import ProtocolError
from pomona.core.files import content, publish, text
from pomona_federation import flower_internals, keys
from pomona_federation.agreement import Federation
from pomona_federation.silo.http_client import ServerRoute
from pomona_federation.silo.settings import SiloFile
from pomona_federation.silo.worker import Worker
from pomona_federation.supervision.supervisor import QUIET, die_with_parent

MODULES = (  # what a node needs
    "flwr.common.serde",
    "flwr.supercore.inflatable.inflatable_utils",
    "flwr.supernode.fleet_http_connection",
    "pomona_federation.messages.message_bus",
)
START_LINE = "the silo's node starts"  # first line of a life in the log
REFUSED = "the node's key is refused"  # last line after an answer 401 to a sign of life
REFUSAL = "refused: the server's app is not the one that this silo agreed to run"
NUMBER_FILE = Path("state", "node", "number")  # of the node in the previous life
NUMBER_BYTES = 200  # most bytes of that file
COUNTED = 60.0  # seconds after its last sign of life for which SuperLink counts a node as connected
BOOT = Path("/proc/sys/kernel/random/boot_id")
IDLE = 3.0  # seconds between requests for messages, unless the gate has held the last one
# shortest duration in seconds of a request for messages that the gate has held
SHORTEST_HOLD = 0.08


def command(folder: Path, app: str) -> list[str]:
    """The command line of a silo kit's node; ``app`` is the SHA-256 in hex of the allowed app."""
    return [sys.executable, "-m", "pomona_federation.silo.node", str(folder), app]


@dataclass
class Node:
    """Fetches messages one at a time, has the worker answer them, and sends the answers.

    Args:
        link: the connection to SuperLink.
        worker: the process that answers.
        app: SHA-256 in hex of the pinned app.
        max_bytes: bytes of the longest message that is fetched.
        log: called with every line for the log.
    """

    link: flower_internals.Connection
    worker: Worker
    app: str
    max_bytes: int
    log: Callable[[str], None]
    _allowed_runs: set[int] = field(default_factory=set)  # runs of the pinned app

    def serve(self) -> None:
        """Answer messages until something raises."""
        while True:
            start = time.monotonic()
            self.worker.rest()
            if not self.once() and time.monotonic() - start < SHORTEST_HOLD:
                time.sleep(IDLE)

    def once(self) -> bool:
        """Receive and answer one message; whether there was one."""
        got = self.link.receive()
        if got is None:
            return False
        try:
            self._answer(*got)
        except flower_internals.RunEndedError:
            self.log("a message of a run that has ended in the meantime")
        except Exception as fault:  # one message that cannot be fetched or sent ends no node
            self.log(f"a message is given up: {type(fault).__name__}: {plain(str(fault), 300)}")
        return True

    def _answer(self, message: Any, tree: Any) -> None:
        run = int(message.metadata.run_id)
        try:
            self.require(run)
            fetched = self.link.pull(message, tree, self.max_bytes)
        except ProtocolError as fault:
            self.log(str(fault))
            self.link.refuse(message, flower_internals.INVALID, str(fault).partition(" (")[0])
            return
        self.log(f"run {run}: a message of {sum(map(len, fetched))} bytes")
        began = time.monotonic()
        reply = self.worker.request(fetched, self.link.node)
        if reply is None:
            self.link.refuse(message, flower_internals.CRASHED, "no process answers for it")
        else:
            self.link.answer(reply, time.monotonic() - began)
        self.log(
            f"run {run}: {'no answer' if reply is None else 'answered'} after "
            f"{time.monotonic() - began:.1f} s"
        )

    def require(self, run: int) -> None:
        """Raise ProtocolError unless a run is that of a federation, with the pinned app."""
        if run in self._allowed_runs:
            return
        sha256 = self.link.federated(run)
        if sha256 != self.app:
            raise ProtocolError(
                f"{REFUSAL} (SHA-256 {plain(sha256)[:12] or 'none'}, expected {self.app[:12]})"
            )
        self._allowed_runs.add(run)


def longest(silo: SiloFile) -> int:
    """Bytes of the longest message that a silo takes: models of ``max_download_mb``, and what half
    its memory holds.
    """
    from pomona_federation.messages.message_bus import LETTER

    memory: int = psutil.virtual_memory().total // 2  # the worker gets a copy
    models = silo.max_download_mb
    return memory if models is None else min(memory, int(models * 1e6) + LETTER)


def last_node(folder: Path) -> int | None:
    """The number of the node of an earlier life; None if it is not known, or if another copy of
    this folder may have it now: a minute after its last sign of life, after a restart of the
    machine, and where this one is the copy.
    """
    try:
        number, origin = content(folder / NUMBER_FILE, NUMBER_BYTES).decode().split()
        recent = time.time() - (folder / NUMBER_FILE).stat().st_mtime < COUNTED
        same_life = recent and origin == _origin(folder)
        return int(number) if same_life and 0 < int(number) < 2**64 else None
    except (OSError, ValueError):
        return None


def note_heartbeat(folder: Path) -> None:
    """Keep the time of a node's last sign of life, which is that of the file of its number."""
    with suppress(OSError):
        os.utime(folder / NUMBER_FILE)


@contextmanager
def noted_node(folder: Path, number: int) -> Iterator[None]:
    """Keep the number of this life's node until it ends by a signal, of which SuperLink hears;
    without it, the next one may have to wait a minute.
    """
    with suppress(OSError):
        (folder / NUMBER_FILE).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        publish(folder / NUMBER_FILE, [f"{number} {_origin(folder)}".encode()], ".number")
    try:
        yield
    except SystemExit:
        (folder / NUMBER_FILE).unlink(missing_ok=True)
        raise


def _origin(folder: Path) -> str:
    """What a copy of a kit's folder has not: the machine's last start, device and inode."""
    status = (folder / NUMBER_FILE).parent.stat()
    return f"{text(BOOT, 100).strip()}-{status.st_dev}-{status.st_ino}"


def end_with_threads() -> None:
    """Have this process end, as by SIGTERM, when one of its threads ends by an exception.

    Flower sends signs of life in a thread, which one answer 500 of a server with a full disk ends:
    the node would go on asking for messages, but count as gone and get none.
    """

    def end(fault: threading.ExceptHookArgs) -> None:
        threading.__excepthook__(fault)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.excepthook = end


def main() -> None:
    """Answer the server's messages until a signal, or until the connection is given up."""
    if len(sys.argv) != 3 or not DIGEST.fullmatch(sys.argv[2]):
        sys.exit("error[USAGE]: give the silo's kit and the SHA-256 in hex of the app")
    folder, app = Path(sys.argv[1]), sys.argv[2]
    os.environ.update(QUIET)  # Flower reads it on import
    die_with_parent()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that SuperLink hears of the end
    end_with_threads()
    echo = partial(print, flush=True)
    echo(START_LINE)
    from pomona_federation.silo.http_client import client

    federation = Federation.read(folder / "federation.toml")
    silo = SiloFile.load(folder / "silo.toml")
    route = ServerRoute.of_kit(folder, silo, federation)
    worker = Worker.for_kit(folder)
    key = None if federation.insecure else keys.private_key(folder / "keys" / "silo.key")
    ca = None if federation.insecure else str(folder / "certs" / "ca.crt")
    try:
        life = last_node(folder), partial(note_heartbeat, folder)
        settings = federation.server, ca, key, partial(client, route), *life
        with flower_internals.connection(*settings) as link, noted_node(folder, link.node):
            Node(link, worker, app, longest(silo), echo).serve()
    except KeyboardInterrupt:  # Flower's answer to a refused sign of life
        sys.exit(REFUSED)
    sys.exit("the connection is given up, and the node is started again")


if __name__ == "__main__":
    main()
