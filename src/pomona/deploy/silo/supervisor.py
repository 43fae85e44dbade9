"""A silo's side: a SuperNode that is kept connected, for weeks, without anybody looking."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil

from pomona.core.errors import ConfigError, ProtocolError, StorageError
from pomona.deploy.agreement import Address, Federation
from pomona.deploy.flower_bundle import pinned
from pomona.deploy.processes import adopt, disown, end, environment, process_tree, reap, start, trim, undisturbed
from pomona.deploy.silo import supernode
from pomona.deploy.silo.settings import SiloFile
from pomona.deploy.silo.watchdog import HEARTBEAT, PATIENCE, ConnectionState, connected, knock, through, wedged
from pomona.storage.atomic_io import publish
from pomona.storage.lock import locked

TICK = 1.0
PROBE = 30.0  # seconds between looks at whether the server can be reached
RESTART = 5.0  # seconds before a node that ended starts again, doubled each time; a lost one counts for a minute
LONGEST = 600.0
STEADY = 300.0  # seconds of connection after which a node is as good as new
TAIL = 20_000  # bytes of a log that hold a node's last words, tracebacks included
STATE = "node.json"


def delay(failures: int) -> float:
    """Seconds before a node is started again, after so many failures without a steady connection between them."""
    return float(min(RESTART * 2.0 ** max(0, failures - 1), LONGEST))


@dataclass(frozen=True)
class SiloStatusFile:
    """What ``node.json`` says: state "starting", "connected", "waiting" (for the server) or "restarting", and why."""

    state: str
    since: str
    restarts: int
    reason: str = ""
    code: int | None = None


@dataclass
class SiloSupervisor:
    """Keeps one SuperNode going, until a signal.

    Args:
        state: the silo's folder for what changes.
        command, env: of the node.
        online: whether a process is connected.
        reach: raises ProtocolError while the server cannot be reached.
        say: told of everything that people should know.
    """

    state: Path
    command: Sequence[str]
    env: Mapping[str, str]
    online: Callable[[int], bool]
    reach: Callable[[], object]
    say: Callable[[str], None]
    _news: SiloStatusFile | None = None
    _process: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        """Until a signal; leaves no process behind."""
        adopt()
        before = set(process_tree(os.getpid()))

        def ours() -> set[psutil.Process]:
            return set(process_tree(os.getpid())) - before

        failures = restarts = 0
        try:
            while True:
                began = time.monotonic()
                reason, code, steady = self._watch(restarts)
                self._end(ours)
                failures, restarts = 1 if steady else failures + 1, restarts + 1
                wait = max(0.0, delay(failures) - (time.monotonic() - began if steady else 0.0))
                self.say(f"the node ended ({reason}); it starts again in {wait:.0f} s")
                self._tell("restarting", restarts, reason, code)
                time.sleep(wait)
        finally:
            with undisturbed():
                self._end(ours)
                self._tell("stopped", restarts)
            disown()

    def _watch(self, restarts: int) -> tuple[str, int | None, bool]:
        """One life of a node: why it ended, its exit code, and whether it had been steadily connected."""
        log = self.state / "logs" / "supernode.log"
        self._process = process = start(self.command, log, dict(self.env))
        self._tell("starting", restarts)
        sights: list[ConnectionState] = []
        first: float | None = None
        last, probed = 0.0, float("-inf")
        reachable = False
        while process.poll() is None:
            now = time.monotonic()
            if now - probed >= PROBE:
                reachable, probed = self._reachable(), now
                trim(log)
                reap({process.pid})
            online = self.online(process.pid)
            if online:
                first, last = first or now, now
            sights = [s for s in [*sights, ConnectionState(now, online, reachable)] if s.time >= now - 2 * PATIENCE]
            recent = first is not None and now - last < 2 * HEARTBEAT
            self._tell("connected" if recent else "starting" if reachable else "waiting", restarts)
            if wedged(sights):
                return f"no connection in {PATIENCE:.0f} s although the server can be reached", None, False
            time.sleep(TICK)
        return ending(process.returncode, log), process.returncode, first is not None and last - first > STEADY

    def _end(self, ours: Callable[[], set[psutil.Process]]) -> None:
        end(ours)
        if self._process:
            self._process.wait()
        reap()

    def _reachable(self) -> bool:
        try:
            self.reach()
        except ProtocolError:
            return False
        return True

    def _tell(self, state: str, restarts: int, reason: str = "", code: int | None = None) -> None:
        """Write ``node.json`` where something has changed; a disk that is full does not end the node."""
        if self._news and (self._news.state, self._news.restarts, self._news.reason) == (state, restarts, reason):
            return
        self._news = SiloStatusFile(state, datetime.now(UTC).isoformat(timespec="seconds"), restarts, reason, code)
        with suppress(OSError):
            publish(self.state / "node", [json.dumps(asdict(self._news)).encode()], lambda _: STATE)


REASONS = {
    "[code: 2004]": "the server refuses this silo's key: it was revoked or never added, or after a crash its last "
    "connection still counts, for a minute; if it stays so, ask the server's administrator",
    "[code: 2001]": "the server admits nobody without a key: compare insecure in its federation.toml and in this one",
    "CERTIFICATE_VERIFY_FAILED": "the server's certificate is not the federation's: `pomona silo check`",
    "address already in use": "its port is taken: set another one in silo.toml",
    # Flower interrupts itself when a request is answered 401, and says no more than that it ended.
    "SuperNode terminated gracefully": "the server refuses this silo's key: it was revoked, or the clocks differ; "
    "`pomona silo check` compares the clocks; if they agree, ask the server's administrator",
}


def ending(code: int | None, log: Path) -> str:
    """Why a node ended, by the last words of its log, in a line that names no path."""
    with suppress(OSError):
        text = log.read_bytes()[-TAIL:].decode(errors="replace")
        text = text.rpartition("Starting Flower SuperNode")[2]  # of this life, not of the one before
        for sign, reason in REASONS.items():
            if sign in text:
                return reason
    return f"exit code {code}; its last words are in logs/supernode.log"


def keep(folder: Path, say: Callable[[str], None]) -> None:
    """Keep a silo kit's SuperNode going until a signal.

    Raises:
        PomonaError: nothing has been started.
        SystemExit, KeyboardInterrupt: after everything has been stopped.
    """
    folder = folder.absolute()
    silo, federation = SiloFile.load(folder / "silo.toml"), Federation.read(folder / "federation.toml")
    app, ca, key = pinned(folder), folder / "certs" / "ca.crt", folder / "keys" / "silo.key"
    if not federation.insecure and not key.is_file():
        raise ConfigError(f"{key} is missing; put the private key of this silo there, readable by its owner alone")
    os.umask(0o077)
    state = folder / "state"
    try:
        state.mkdir(mode=0o700, exist_ok=True)
        with locked(state):
            home = state / "flwr"
            home.mkdir(mode=0o700, exist_ok=True)
            port = (through(silo.proxy) or Address.parse(federation.server)).port

            def tell(text: str) -> None:
                say(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}Z {text}")

            tell(f"{silo.name} attends {federation.name} at {federation.server}")
            SiloSupervisor(
                state,
                supernode.command(folder, silo, federation, app),
                environment(home, silo.proxy),
                lambda pid: connected(pid, port, silo.port),
                lambda: knock(federation, ca, silo.proxy),
                tell,
            ).run()
    except OSError as fault:
        raise StorageError(f"cannot write {state} ({fault.strerror}); make room, or mend its permissions") from fault
