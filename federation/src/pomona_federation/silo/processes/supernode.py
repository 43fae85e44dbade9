"""Flower's SuperNode, for one app only: ``python -m pomona_federation.silo.processes.supernode --app-sha256 HEX ARGS``.

A SuperNode runs any code that the server sends. This one compares the app with the SHA-256 in the silo's kit before
unpacking anything of it, and answers with an error if it differs. The other arguments are flower-supernode's. It gives
messages only to the resident process, which knows the silo's secret.
"""

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from logging import ERROR
from pathlib import Path
from typing import Any, NoReturn

from pomona.core.bounds import DIGEST
from pomona.core.errors import ProtocolError
from pomona_federation import flower_internals
from pomona_federation.agreement import Federation
from pomona_federation.silo.http_client import ServerRoute
from pomona_federation.silo.processes import fork_executor
from pomona_federation.silo.processes.pinned_app import REFUSAL, require_hash, require_pinned
from pomona_federation.silo.processes.resident import Resident
from pomona_federation.silo.processes.runtime_secret import secret_file
from pomona_federation.silo.settings import SiloFile
from pomona_federation.supervision.asgi import Application, Receive, Scope, Send
from pomona_federation.supervision.connection_owner import ours
from pomona_federation.supervision.processes import QUIET, die_with_parent

HOST = "127.0.0.1"
OPTION, KIT = "--app-sha256", "--kit"
HELD = 0.25  # shortest duration in seconds of a request for messages that the gate has held
INVALID, CRASHED = 7, 8  # Flower's codes: the app is not accepted; its process has ended without an answer
CHECK = 50  # looks after which the state of the message's task is checked
LOOK = 0.02  # seconds between looks, in this process's memory, for the answer to the current message


REFUSED = b"this port serves its own account alone\n"


@dataclass(frozen=True)
class OwnAccount:
    """ASGI middleware; ``app`` is Flower's."""

    app: Application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 403 and read nothing of it."""
        if scope["type"] == "lifespan" or ours(scope.get("client"), scope.get("server")):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [(b"content-type", b"text/plain"), (b"connection", b"close")]
            await send({"type": "http.response.start", "status": 403, "headers": headers})
            await send({"type": "http.response.body", "body": REFUSED})


def command(folder: Path, silo: SiloFile, federation: Federation, app: str) -> list[str]:
    """The command line of a silo kit's SuperNode; ``app`` is the SHA-256 in hex of the allowed app."""
    ca, key = folder / "certs" / "ca.crt", folder / "keys" / "silo.key"
    secured = ["--root-certificates", str(ca), "--auth-supernode-private-key", str(key)]
    return [
        *(
            sys.executable,
            "-m",
            "pomona_federation.silo.processes.supernode",
            OPTION,
            app,
            "--port",
            str(silo.port),
            KIT,
            str(folder),
        ),
        *("--superlink", federation.server, "--host", HOST, "--isolation", "process"),
        *("--superexec-auth-secret-file", str(secret_file(folder))),
        *(["--insecure"] if federation.insecure else secured),
    ]


def pinned(get_fab: Callable[[str, int], Any], expected: str, asked: Callable[[], Any]) -> Callable[[str, int], Any]:
    """Flower's download of an app, with a ProtocolError for all but the pinned one under its own name.

    Args:
        get_fab: the download.
        expected: SHA-256 in hex of the app.
        asked: returns the run requested last.
    """

    def get(fab_hash: str, run_id: int) -> Any:
        require_hash(fab_hash, expected)
        fab = get_fab(fab_hash, run_id)
        require_pinned(expected, asked(), fab)
        return fab

    return get


@dataclass
class Worker:
    """State of a SuperNode: its last request for messages, the message whose answer it awaits, its run.

    Flower answers for a killed process after a minute without a sign of life, but not for one killed before it had
    fetched its message: no answer would ever come, and the node would wait for good.
    """

    asked: float = float("-inf")
    message: Any = None
    state: Any = None
    store: Any = None
    run: Any = None
    _looks: int = 0
    _missed: int = 0

    def begin(self, state: Any, store: Any) -> None:
        """Record the start of a request for messages."""
        self.asked, self.message, self.state, self.store = time.monotonic(), None, state, store
        self._looks = self._missed = 0

    def rest(self) -> None:
        """Wait before the next request, unless the gate has held the last one."""
        time.sleep(0.0 if time.monotonic() - self.asked > HELD else flower_internals.IDLE)

    def look(self) -> None:
        """Wait a moment for the answer; answer with an error if no task is left that could give one."""
        time.sleep(LOOK)
        self._looks += 1
        if self._looks % CHECK == 0 and self.message is not None:
            # Twice: the answer may have come, and its task ended, since Flower looked.
            self._missed = self._missed + 1 if flower_internals.abandoned(self.state) else 0
            if self._missed == 2:
                flower_internals.refuse(self.message, CRASHED, "no process answers for it", self.state, self.store)


def guard(expected: str, stored: Callable[[], None] = lambda: None) -> Worker:
    """Make Flower's SuperNode refuse all other apps and runs that are not federated, and shorten its waits.

    Args:
        expected: SHA-256 in hex of the app.
        stored: called after each message that was fetched.

    Returns:
        The SuperNode's state, updated from then on.
    """
    from flwr.common.logger import log

    worker = Worker()

    def around(pull: flower_internals.Pull) -> flower_internals.Pull:
        def guarded(*, state: Any, object_store: Any, receive: Any, get_run: Any, get_fab: Any, **rest: Any) -> Any:
            worker.begin(state, object_store)

            def receiving() -> Any:
                got = receive()
                worker.message = got[0] if got else None
                return got

            def running(run_id: int) -> Any:
                run = get_run(run_id)
                if not flower_internals.federated(run):
                    raise ProtocolError("refused: a run that is not of a federation")
                worker.run = run
                return run

            kept = {"state": state, "object_store": object_store, "receive": receiving, "get_run": running}
            try:
                run_id = pull(**kept, get_fab=pinned(get_fab, expected, lambda: worker.run), **rest)
            except ProtocolError as fault:
                log(ERROR, "%s", fault)
                return flower_internals.refuse(worker.message, INVALID, REFUSAL, state, object_store)
            if run_id is not None:
                stored()
            return run_id

        return guarded

    def answering(push: flower_internals.Push) -> flower_internals.Push:
        def one(*, state: Any, object_store: Any, **rest: Any) -> None:
            awaited = flower_internals.OneAnswer(state, object_store, worker.message)
            push(state=awaited, object_store=object_store, **rest)

        return one

    flower_internals.wrap_pull(around)
    flower_internals.wrap_push(answering)
    flower_internals.replace_waits({flower_internals.IDLE: worker.rest, flower_internals.REPLY: worker.look})
    return worker


def main(words: Sequence[str] | None = None) -> None:
    """Run Flower's SuperNode for the pinned app, and the resident process that handles its messages."""
    given = list(sys.argv[1:] if words is None else words)
    own = dict(zip(given[:6:2], given[1:6:2], strict=False))
    app = own.get(OPTION, "")
    if list(own) != [OPTION, "--port", KIT] or not DIGEST.fullmatch(app):
        sys.exit(f"error[USAGE]: give {OPTION} and the SHA-256 in hex of the app, --port and {KIT} first")
    os.environ.update(QUIET)  # Flower reads it on import
    die_with_parent()
    from pomona_federation.silo.http_client import client

    env = {**os.environ, **fork_executor.ONE_THREAD, **fork_executor.POLL}
    resident = Resident(fork_executor.command(int(own["--port"]), Path(own[KIT]), app), env)
    resident.keep()
    guard(app, resident.ring)
    flower_internals.wrap_runtime(OwnAccount)
    folder = Path(own[KIT])
    way = ServerRoute.of(folder, SiloFile.load(folder / "silo.toml"), Federation.read(folder / "federation.toml"))
    flower_internals.replace_fleet_client(partial(client, way))
    sys.argv = ["flower-supernode", *given[6:], *given[2:4]]
    work()


def work() -> NoReturn:
    """Run Flower's SuperNode, and end this process if it has given up: one of its threads would keep it alive."""
    flower_internals.run_supernode()
    print("the SuperNode has given up its work, and is started again", file=sys.stderr, flush=True)  # noqa: T201 - the log
    os._exit(1)


if __name__ == "__main__":
    main()
