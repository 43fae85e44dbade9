"""A silo's supervision policy: one node, kept connected for weeks without attention."""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise, takewhile
from pathlib import Path

import psutil

from pomona.core.errors import ProtocolError
from pomona.core.files import MAX_LOG_BYTES, content, publish, writing
from pomona.storage.lock import locked
from pomona_federation.agreement import Federation
from pomona_federation.flower_internals import pinned
from pomona_federation.silo import node, state_origin
from pomona_federation.silo.http_client import ServerRoute
from pomona_federation.silo.kit_checks import own_key
from pomona_federation.silo.server_requests import (
    REFUSALS,
    Membership,
    ask_health,
    ask_membership,
    explained,
)
from pomona_federation.silo.settings import SiloFile
from pomona_federation.silo.state_origin import rules
from pomona_federation.silo.study_proposals import StudyWatch
from pomona_federation.supervision.fork import Program
from pomona_federation.supervision.process_logs import SUPERVISOR, LogFile
from pomona_federation.supervision.status_files import NODE, NodeStatus
from pomona_federation.supervision.supervisor import (
    FLOWER,
    Restart,
    Supervisor,
    backoff,
    environment,
    reap,
)

HEARTBEAT = 30.0  # seconds between a node's signs of life
PATIENCE = 5 * HEARTBEAT
TICK = 1.0
# seconds at least that a node keeps a sign of life's connection; Flower waits for 5 s
HEARTBEAT_CONNECTION = 4.0
PROBE = 30.0  # seconds between requests to the server
# seconds before a restart, doubled by each failure; SuperLink counts a lost node as connected for a
# minute
FIRST_DELAY, LONGEST_DELAY = 5.0, 600.0
# seconds of connection after which failures are forgotten: a server that restarts after each of
# several short studies is no fault of the node, and SuperLink no longer counts the lost one then
STEADY = 60.0
# name of the status file while it is written; a report is written in its folder, too
UNFINISHED = ".node"
TAIL = 20_000  # bytes of a log's end that contain a node's last output, tracebacks included


@dataclass
class SiloPolicy:
    """Keeps one node running, until a signal.

    Args:
        state: the silo's folder for what changes.
        online: whether a process is connected.
        reach: raises ProtocolError while the server cannot be reached.
        log: called with every line for the operator.
        membership: this silo's, at the server, asked after a node was refused.
        studies: asks the server about studies, and adds new ones.
    """

    state: Path
    online: Callable[[int], bool]
    reach: Callable[[], object]
    log: Callable[[str], None]
    membership: Callable[[], Membership] = lambda: "unsaid"
    studies: Callable[[], None] = lambda: None
    _written: NodeStatus | None = None
    _failures: int = 0  # without a steady connection in between
    _restarts: int = 0
    _refusals: int = 0  # consecutive answers that this silo was revoked
    _revoked: str = ""
    _unreachable: str = ""  # why the last probe found no server

    def watch(self, supervisor: Supervisor) -> Restart | str:
        """Watch one life of the node, and report why it ended; for a revoked silo, return the
        reason.
        """
        began = time.monotonic()
        reason, code, steady = self._life(supervisor)
        if reason in REFUSED:
            membership = self.membership()
            self._refusals = self._refusals + 1 if membership == "revoked" else 0
            reason = explained(membership, reason, self._refusals)
        else:
            self._refusals = 0
        if self._refusals >= REFUSALS:
            self._revoked = reason
            return reason
        self._failures, self._restarts = 1 if steady else self._failures + 1, self._restarts + 1
        lived = time.monotonic() - began if steady else 0.0
        delay = max(0.0, backoff(self._failures, FIRST_DELAY, LONGEST_DELAY) - lived)
        self.log(f"the node ended ({reason}); it starts again in {delay:.0f} s")
        self._write_status("restarting", reason, code)
        return Restart(delay)

    def stopped(self, _: BaseException | None, /) -> None:
        """Write that the node has been stopped, or has stopped after its revocation."""
        self._write_status("revoked" if self._revoked else "stopped", self._revoked)

    def _life(self, supervisor: Supervisor) -> tuple[str, int | None, bool]:
        """Start the node; return why it ended, its exit code, and whether it had been steadily
        connected.
        """
        process = supervisor.start()
        self._write_status("starting")
        states: list[ConnectionState] = []
        first: float | None = None
        last, probed = 0.0, float("-inf")
        reachable = False
        while supervisor.alive:
            timestamp = time.monotonic()
            if timestamp - probed >= PROBE:
                reachable = self._reachable()
                if reachable:
                    self.studies()
                reap({process.pid})
                # however long they take, a heartbeat fits between
                probed = timestamp = time.monotonic()
            online = self.online(process.pid)
            if online:
                first, last = first or timestamp, timestamp
            states = [
                s
                for s in [*states, ConnectionState(timestamp, online, reachable)]
                if s.time >= timestamp - 2 * PATIENCE
            ]
            recent = first is not None and timestamp - last < 2 * HEARTBEAT
            state = "connected" if recent else "starting" if reachable else "waiting"
            self._write_status(state, self._unreachable if state == "waiting" else "")
            if stuck(states):
                return (
                    f"no connection in {PATIENCE:.0f} s although the server can be reached",
                    None,
                    False,
                )
            time.sleep(TICK)
        supervisor.settle()
        steady = first is not None and last - first > STEADY
        return exit_reason(process.returncode, supervisor.log), process.returncode, steady

    def _reachable(self) -> bool:
        """Whether the server can be reached; each new reason why not is logged once."""
        reason = ""
        try:
            self.reach()
        except ProtocolError as fault:
            reason = str(fault)
        except Exception as fault:  # no answer of a server ends the supervisor
            reason = f"cannot check whether the server can be reached: a {type(fault).__name__}"
        if reason and reason != self._unreachable:
            self.log(reason)
        self._unreachable = reason
        return not reason

    def _write_status(self, state: str, reason: str = "", code: int | None = None) -> None:
        """Write ``node.json`` if something has changed; a full disk does not end the node."""
        timestamp = datetime.now(UTC).isoformat(timespec="seconds")
        status = NodeStatus(
            state=state, since=timestamp, restarts=self._restarts, reason=reason, code=code
        )
        if self._written and self._written == status.model_copy(
            update={"since": self._written.since}
        ):
            return
        self._written = status
        with suppress(OSError):
            publish(self.state / "node" / NODE, [status.model_dump_json().encode()], UNFINISHED)


@dataclass(frozen=True)
class ConnectionState:
    """A running node at one moment: whether it is connected to the server, and whether the server
    is reachable.
    """

    time: float
    connected: bool
    reachable: bool


def stuck(states: Sequence[ConnectionState], patience: float = PATIENCE) -> bool:
    """Return whether a running node has given up: no connection in ``patience`` seconds with the
    server in reach.

    Flower's client may stop its work for good, as after an error whose text mentions TLS (a load
    balancer that drops a connection is enough), while the process keeps running. Its log is silent
    then, as it is while a model trains for hours, and only the server's control interface, which is
    closed to silos, knows its status. But a working node opens a connection for every heartbeat,
    every 30 s, and keeps it for 5 s, whatever its app does. A slow request to the server
    leaves a gap between two observations. A node counts as working if the gaps since it was last
    seen connected can have hidden every heartbeat. While the server
    cannot be reached the node is right to wait, so that time does not count; nor does the time
    before the first observation.

    Args:
        states: states of one process, oldest first, about one a second.
        patience: seconds.
    """
    unconnected = [
        s.time for s in takewhile(lambda s: s.reachable and not s.connected, reversed(states))
    ]
    if not unconnected or (waited := unconnected[0] - unconnected[-1]) < patience:
        return False
    gaps = [later - earlier for later, earlier in pairwise(unconnected)]
    hidden = sum(
        1 + (gap - HEARTBEAT_CONNECTION) // HEARTBEAT for gap in gaps if gap > HEARTBEAT_CONNECTION
    )
    return hidden < max(1, (waited - HEARTBEAT_CONNECTION) // HEARTBEAT)


def connected(pid: int, port: int) -> bool:
    """Return whether a process has a TCP connection to a remote port."""
    try:
        sockets = psutil.Process(pid).net_connections("tcp")
    except psutil.Error:
        return False
    return any(s.status == psutil.CONN_ESTABLISHED and s.raddr.port == port for s in sockets)


REASONS = {
    "[code: 2004]": "the server refuses this silo's key: it was revoked or never added, or after "
    "a crash its last "
    "connection still counts, for a minute; if it stays so, ask the server's administrator",
    "[code: 2001]": (
        "the server admits no silo without a key: compare insecure in its "
        "federation.toml and in this one"
    ),
    "CERTIFICATE_VERIFY_FAILED": "this silo refuses the server's certificate: `pomona silo check`",
    "the proxy refuses (": (
        "the proxy refuses this silo's password, or the way to the server: `pomona silo check`"
    ),
    node.REFUSED: "the server refuses this silo's key: it was revoked, or the clocks differ; "
    "`pomona silo check` compares the clocks; if they agree, ask the server's administrator",
}

REFUSED = {REASONS["[code: 2004]"], REASONS[node.REFUSED]}  # the server can explain it


def exit_reason(code: int | None, log: Path) -> str:
    """Return why a node ended, from the end of its log, in a line without paths."""
    with suppress(OSError):
        text = content(log, MAX_LOG_BYTES)[-TAIL:].decode(errors="replace")
        text = text.rpartition(node.START_LINE)[2]  # of this life, not of the one before
        for sign, reason in REASONS.items():
            if sign in text:
                return reason
    return f"exit code {code}; `pomona silo logs` shows its last lines"


def run_node(folder: Path, echo: Callable[[str], None]) -> None:
    """Keep a silo kit's node running until a signal.

    Raises:
        PomonaError: nothing has been started, or this silo was revoked.
        SystemExit, KeyboardInterrupt: after everything has been stopped.
    """
    folder = folder.absolute()
    silo = SiloFile.load(folder / "silo.toml")
    federation = Federation.read(folder / "federation.toml")
    app, key = pinned(folder), folder / "keys" / "silo.key"
    if not federation.insecure:
        own_key(folder, silo.name)  # raises here, instead of repeatedly in the node
    from pomona_federation.silo.http_client import client

    os.umask(0o077)
    state = folder / "state"
    origin = state_origin.ensure_origin(folder)
    state_origin.require_sealed_files(folder)
    rule_lines = list(rules(folder, silo, origin))
    with writing(state), locked(state):
        flower_folder = state / "flwr"
        flower_folder.mkdir(mode=0o700, exist_ok=True)
        route = ServerRoute.of_kit(folder, silo, federation)
        client(route).close()  # raises here for unusable files, instead of repeatedly in the node
        supervisor_log = LogFile(state / "logs" / SUPERVISOR)
        report = supervisor_log.tee(echo)
        report(f"{silo.name} attends {federation.name} at {federation.server}")
        for line in rule_lines:
            report(f"warning: {line.text}" if line.foreign else line.text)
        command, log = node.command(folder, app), state / "logs" / "node.log"
        policy = SiloPolicy(
            state,
            lambda pid: connected(pid, route.port),
            lambda: ask_health(route),
            report,
            lambda: ask_membership(route, key),
            StudyWatch(folder, report).poll,
        )
        env = environment(flower_folder)
        os.environ.update({name: env[name] for name in FLOWER})  # Flower reads them on import
        program = Program(node.main, node.MODULES)
        reason = Supervisor(command, env, log, program=program).run(policy)
        supervisor_log.write(reason, "ERROR")
        raise ProtocolError(reason)
