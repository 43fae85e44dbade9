"""Flower's SuperNode, for one app only: ``python -m pomona.deploy.silo.supernode --app-sha256 HEX ARGS``.

A SuperNode runs whatever code the server sends. This one compares the app with the SHA-256 that the silo's kit holds,
before anything of it is unpacked, and answers with an error where it is another. The rest are flower-supernode's
arguments.
"""

import hashlib
import os
import sys
from collections.abc import Callable, Sequence
from logging import ERROR
from pathlib import Path
from typing import Any

from pomona.core.errors import ConfigError, ProtocolError
from pomona.deploy.agreement import Federation
from pomona.deploy.processes import QUIET, die_with_parent
from pomona.deploy.silo.settings import SiloFile

OPTION = "--app-sha256"
REFUSAL = "refused: the server's app is not the one that this silo agreed to run"


def command(folder: Path, silo: SiloFile, federation: Federation, app: str) -> list[str]:
    """The command line of a silo kit's SuperNode; ``app`` is the SHA-256 in hex of the app that it may run."""
    ca, key = folder / "certs" / "ca.crt", folder / "keys" / "silo.key"
    secured = ["--root-certificates", str(ca), "--auth-supernode-private-key", str(key)]
    return [
        *(sys.executable, "-m", "pomona.deploy.silo.supernode", OPTION, app),
        *("--superlink", federation.server, "--host", "127.0.0.1", "--port", str(silo.port)),
        *("--node-config", f"folder={_quoted(str(folder))}"),
        *(["--insecure"] if federation.insecure else secured),
    ]


def _quoted(text: str) -> str:
    """A TOML string. Raises ConfigError for a path that Flower's command line cannot carry."""
    if any(c in "\"'\\" or not c.isprintable() for c in text):
        raise ConfigError(
            f"{text!r} has quotes or unprintable characters in its path; move the kit to a plainer folder"
        )
    return f'"{text}"'


def pinned(get_fab: Callable[[str, int], Any], expected: str) -> Callable[[str, int], Any]:
    """Flower's download of an app, refusing with ProtocolError all but the one whose SHA-256 is ``expected``."""

    def get(fab_hash: str, run_id: int) -> Any:
        if fab_hash != expected:
            raise ProtocolError(f"{REFUSAL} (SHA-256 {fab_hash[:12]}, expected {expected[:12]})")
        fab = get_fab(fab_hash, run_id)
        found = hashlib.sha256(fab.content).hexdigest()
        if found != expected:
            raise ProtocolError(f"{REFUSAL} (SHA-256 {found[:12]}, expected {expected[:12]})")
        return fab

    return get


def guard(expected: str) -> None:
    """Make Flower's SuperNode refuse all apps but one, and all runs that are not federated."""
    from flwr.app import Error, Message
    from flwr.common.constant import ErrorCode
    from flwr.common.logger import log
    from flwr.supercore.constant import TaskType
    from flwr.supernode import start_client_internal as node

    pull = node._pull_and_store_message

    def guarded(*, receive: Any, get_run: Any, get_fab: Any, **rest: Any) -> int | None:
        held: list[Any] = []

        def receiving() -> Any:
            got = receive()
            held[:] = [got[0]] if got else []
            return got

        def running(run_id: int) -> Any:
            run = get_run(run_id)
            if run.primary_task_type != TaskType.SERVER_APP:
                raise ProtocolError("refused: a run that is no federation's")
            return run

        try:
            return pull(receive=receiving, get_run=running, get_fab=pinned(get_fab, expected), **rest)
        except ProtocolError as fault:
            log(ERROR, "%s", fault)
            reply = Message(Error(ErrorCode.INVALID_FAB, REFUSAL), reply_to=held[0])
            node._insert_message(reply, rest["state"], rest["object_store"])
            return int(held[0].metadata.run_id)

    node._pull_and_store_message = guarded  # type: ignore[assignment]


def main(words: Sequence[str] | None = None) -> None:
    """Run Flower's SuperNode for the pinned app."""
    given = list(sys.argv[1:] if words is None else words)
    if len(given) < 2 or given[0] != OPTION or len(given[1]) != 64 or set(given[1]) - set("0123456789abcdef"):
        sys.exit(f"error[USAGE]: give {OPTION} and the SHA-256 in hex of the app first")
    os.environ.update(QUIET)  # Flower reads it when it is imported
    die_with_parent()
    from flwr.supernode.cli import flower_supernode

    guard(given[1])
    sys.argv = ["flower-supernode", *given[2:]]
    flower_supernode()


if __name__ == "__main__":
    main()
