"""``pomona server start``: from a kit to a running federation, and the checks before it."""

import os
import socket
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import tomli_w

from pomona.core.errors import CheckpointError, LockedError
from pomona.core.files import probe, writing
from pomona.core.registry import load
from pomona.storage.lock import locked
from pomona.storage.run_status import Status, last_round, read_status, status_after
from pomona_federation import flower_internals
from pomona_federation.address import Address
from pomona_federation.agreement import Federation
from pomona_federation.audit_log import Audit
from pomona_federation.certificates import RENEW, certificate, expires, private, warning
from pomona_federation.server import superlink
from pomona_federation.server.notifier import Notifier
from pomona_federation.server.registry_admin import members
from pomona_federation.server.settings import ServerFile
from pomona_federation.server.study_queue import StudyQueue
from pomona_federation.server.superlink_client import APP, SuperLinkClient, connection
from pomona_federation.server.superlink_supervisor import ServerPolicy
from pomona_federation.supervision.fork import Program
from pomona_federation.supervision.process_logs import SUPERVISOR, LogFile
from pomona_federation.supervision.supervisor import FLOWER, SERVER_KIT, Supervisor, environment


def serve(
    folder: Path, echo: Callable[[str], None], resume: bool = False, persistent: bool = False
) -> Status:
    """Run the studies of a server's kit until all have ended; a started study continues after its
    last round.

    Args:
        folder: the kit.
        echo: called with every line for the operator.
        resume: refuse if there is nothing to continue; also continue a submitted study that failed,
            if it ran last. The kit's own is always continued.
        persistent: wait for further studies when all have ended, as a kit without its own study
            always does.

    Returns:
        The status of the study that ended last.

    Raises:
        PomonaError: nothing has been started.
        SystemExit, KeyboardInterrupt: after everything has been stopped in order; the status is
            written.
    """
    federation = Federation.read(folder / "federation.toml")
    folder, state = folder.absolute(), folder.absolute() / "run"
    os.umask(0o077)
    persistent |= federation.study is None
    queue, previous, committed = StudyQueue(folder), read_status(state), last_round(state)
    failed, finished = queue.failed(resume), getattr(previous, "state", "finished") == "finished"
    if previous and finished and not any((persistent, queue.open, failed)):
        echo(f"the run in {state} is finished after round {previous.round}; nothing to do")
        return previous
    if resume and not (committed or queue.has_run):
        raise CheckpointError(f"{state} holds no run to resume; use `pomona server start`")
    with writing(state):
        state.mkdir(mode=0o700, exist_ok=True)
        with locked(state):
            probe(state)
            env = _flower(folder, state, federation)
            require_ready(folder, federation)
            for name in failed:
                queue.resume(name)
            if committed or not finished:
                echo(f"continuing after round {committed}")
            return _served(folder, federation, env, echo, persistent)


def _flower(folder: Path, state: Path, federation: Federation) -> dict[str, str]:
    """Set Flower up before it is imported: it is also called in this process, and reads its
    settings on import.

    Returns the environment of its processes.
    """
    flwr_home = state / "flwr"
    flwr_home.mkdir(mode=0o700, exist_ok=True)
    settings = connection(federation, folder / "certs" / "ca.crt")
    (flwr_home / "config.toml").write_text(tomli_w.dumps(settings), encoding="utf-8")
    env = environment(flwr_home) | {SERVER_KIT: str(folder)}
    os.environ.update({name: env[name] for name in FLOWER})
    return env


def _served(
    folder: Path,
    federation: Federation,
    env: Mapping[str, str],
    echo: Callable[[str], None],
    persistent: bool,
) -> Status:
    state, ca = folder / "run", folder / "certs" / "ca.crt"
    log = LogFile(state / "logs" / SUPERVISOR).tee(echo)
    with Audit(state / "audit.jsonl") as audit, _notices(folder, federation, log):
        if not federation.insecure and (line := warning(expires(folder / "certs" / "server.crt"))):
            log(f"the server's certificate {line}; {RENEW}")
        audit.write("started", federation=federation.name, round=last_round(state))
        supervisor = Supervisor(
            superlink.command(folder, federation),
            env,
            state / "logs" / "superlink.log",
            first=APP,
            program=Program(load("pomona_federation.superlink:main"), superlink.MODULES),
        )
        policy = ServerPolicy(
            folder,
            lambda: SuperLinkClient(federation.inside, None if federation.insecure else ca, env),
            lambda: flower_internals.agreed_bundle(folder),
            lambda: {} if federation.insecure else members(folder),
            log,
            audit,
            persistent,
        )
        try:
            status = supervisor.run(policy)
        except BaseException as fault:
            code = status_after(fault, 0).code
            audit.write("stopped", code=code, round=last_round(state))
            raise
        audit.write("stopped", code=status.code, round=status.round)
        return status


def _notices(
    folder: Path, federation: Federation, log: Callable[[str], None]
) -> AbstractContextManager[object]:
    """Sends the notices that ``server.toml`` asks for, if any. Raises ConfigError."""
    settings = ServerFile.load(folder, federation).notify
    return Notifier(folder, federation.name, settings, log) if settings else nullcontext()


def require_ready(folder: Path, federation: Federation) -> None:
    """Raise ConfigError or LockedError for anything that would keep SuperLink from running, before
    it is started.
    """
    flower_internals.agreed_bundle(folder)
    if not federation.insecure:
        private(folder / "certs" / "server.key")
        certificate(
            folder / "certs" / "server.crt",
            folder / "certs" / "server.key",
            folder / "certs" / "ca.crt",
        )
    bind = Address.parse(federation.bind)
    family = socket.AF_INET6 if ":" in bind.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe_:
        probe_.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe_.bind((bind.host, bind.port))
        except OSError as fault:
            raise LockedError(
                f"bind = {federation.bind}: {fault.strerror}; stop the process that listens "
                "there, or change bind"
            ) from None
