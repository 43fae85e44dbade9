"""Everything of Flower that Pomona replaces, or calls beyond its documented interface; any release
may change it.

Replaced are the HTTP client of a silo's connection (``connection``), SuperLink's list of
middleware, the server that runs it, how long it waits for an app's start, and how it makes its
tables (``run_superlink``).
Tested with Flower 1.42; ``federation/tests/test_flower_internals.py`` fails with the name of
whatever is gone or has changed.
"""

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

from pomona.core import files
from pomona.core.bounds import MOST_BYTES
from pomona.core.errors import ConfigError, ProtocolError

# Flower's codes: the app is not accepted; its process has ended without an answer
INVALID, CRASHED = 7, 8
RAISED = 2  # the app has raised an exception
PIECE = 5 * 2**20  # bytes of a record of a message, as in Flower's own pieces of an array
EXTRA_OBJECTS = 8  # objects of a message in addition to its pieces
TOO_LONG = "refused: the message is longer than this silo takes"

# A silo's node.


class RunEndedError(Exception):
    """The run of a message is over: no one waits for an answer."""


@dataclass(frozen=True)
class Connection:
    """A silo's connection to SuperLink, in the functions that Flower makes for its SuperNode."""

    node: int
    receive: Callable[[], Any]
    send: Callable[..., Any]
    get_run: Callable[[int], Any]
    get_fab: Callable[[str, int], Any]
    pull_object: Callable[[int, str], bytes]
    push_object: Callable[..., None]
    confirm: Callable[[int, str], None]

    def pull(self, message: Any, tree: Any, max_bytes: int) -> list[bytes]:
        """Fetch a received message, as bytes for ``run_client_app``.

        Raises RunEndedError, and ProtocolError for more than ``max_bytes`` bytes, or for more
        objects than that many bytes are cut into.
        """
        from flwr.common.serde import message_to_proto
        from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
        from flwr.supercore.inflatable.inflatable_utils import pull_objects
        from flwr.supercore.run import RunNotRunningException

        run, size, counting = int(message.metadata.run_id), 0, Lock()
        ids = list(dict.fromkeys(o.object_id for o in iterate_object_tree(tree)))
        if len(ids) > max_bytes // PIECE + EXTRA_OBJECTS:
            raise ProtocolError(f"{TOO_LONG} ({len(ids)} objects)")

        def pulled(object_id: str) -> bytes:
            nonlocal size
            data = self.pull_object(run, object_id)
            with counting:
                size += len(data)
                if size > max_bytes:
                    raise ProtocolError(f"{TOO_LONG} (over {max_bytes} bytes)")
            return data

        try:
            objects = pull_objects(ids, pull_object_fn=pulled)
            self.confirm(run, message.metadata.message_id)
        except RunNotRunningException:
            raise RunEndedError from None
        records = [o for name, data in objects.items() for o in (name.encode(), data)]
        return [message_to_proto(message).SerializeToString(), tree.SerializeToString(), *records]

    def federated(self, run: int) -> str:
        """SHA-256 of a run's app, as the server states it; "" for a run without a ServerApp."""
        from flwr.supercore.constant import TaskType

        info = self.get_run(run)
        return str(info.fab_hash) if info.primary_task_type == TaskType.SERVER_APP else ""

    def refuse(self, message: Any, code: int, reason: str) -> None:
        """Answer a message with an error. Raises RunEndedError."""
        from flwr.app import Error, Message
        from flwr.supercore.task_identity import TaskIdentity

        TaskIdentity.run_id = message.metadata.run_id
        TaskIdentity.node_id = self.node
        TaskIdentity.task_id = 1
        self.answer(deflated(Message(Error(code, reason), reply_to=message)), 0.0)

    def answer(self, reply: Sequence[bytes], seconds: float) -> None:
        """Send a reply that ``deflated`` made. Raises RunEndedError."""
        from flwr.common.serde import message_from_proto
        from flwr.proto.message_pb2 import Message as MessageProto
        from flwr.proto.message_pb2 import ObjectTree
        from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
        from flwr.supercore.inflatable.inflatable_utils import push_object_contents_from_iterable
        from flwr.supercore.run import RunNotRunningException

        message = message_from_proto(MessageProto.FromString(reply[0]))
        tree = ObjectTree.FromString(reply[1])
        objects = dict(zip((o.decode() for o in reply[2::2]), reply[3::2], strict=True))
        try:
            requested, session = self.send(message, tree, seconds)
            ids = dict.fromkeys(o.object_id for o in iterate_object_tree(tree))
            push = partial(self.push_object, message.metadata.run_id, session)
            push_object_contents_from_iterable(
                ((i, objects[i]) for i in ids if i in requested), push_object_fn=push
            )
        except RunNotRunningException:
            raise RunEndedError from None


@contextmanager
def connection(
    address: str,
    ca: str | None,
    key: EllipticCurvePrivateKey | None,
    new_client: Callable[[], Any],
    previous: int | None = None,
    on_heartbeat: Callable[[], None] = lambda: None,
) -> Iterator[Connection]:
    """Connect to SuperLink, and send it a sign of life every 30 s; at the end, tell it so.

    Flower reports a connection that cannot be made in its log and raises SystemExit; a fault within
    the block ends it. A refused key raises KeyboardInterrupt.

    Args:
        address: host:port.
        ca: path of the authority's certificate; None without TLS.
        key: the silo's private key; None for a federation without keys.
        new_client: makes the HTTP client (httpx) that carries everything.
        previous: the node of an earlier life, which may have been killed: SuperLink would count it
            as connected for a minute, and refuse this one.
        on_heartbeat: called before each sign of life.
    """
    from flwr.proto.fleet_pb2 import DeactivateNodeRequest
    from flwr.supernode import fleet_http_connection as module
    from flwr.supernode.fleet_http_client import FleetHttpClient

    class FleetClient(FleetHttpClient):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self._client.close()
            self._client = new_client()

        def ActivateNode(self, request: Any) -> Any:
            if previous is not None:
                with suppress(httpx.HTTPError):
                    self.DeactivateNode(DeactivateNodeRequest(node_id=previous))
            return super().ActivateNode(request)

        def SendNodeHeartbeat(self, request: Any) -> Any:
            on_heartbeat()
            return super().SendNodeHeartbeat(request)

    vars(module)["FleetHttpClient"] = FleetClient
    keys = (key, key.public_key()) if key else None
    with module.http_request_response(address, ca is None, ca, keys) as functions:
        yield Connection(*functions)


def run_client_app(app: Any, request: Sequence[bytes], node: int) -> list[bytes]:
    """The reply of a ClientApp to a message, as ``flwr-clientapp`` makes it; an exception becomes
    an error.
    """
    from flwr.app import Context, Error, Message, RecordDict
    from flwr.common.serde import message_from_proto
    from flwr.proto.message_pb2 import Message as MessageProto
    from flwr.proto.message_pb2 import ObjectTree
    from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree
    from flwr.supercore.task_identity import TaskIdentity

    tree = ObjectTree.FromString(request[1])
    objects = dict(
        zip((object_id.decode() for object_id in request[2::2]), request[3::2], strict=True)
    )
    run = int(message_from_proto(MessageProto.FromString(request[0])).metadata.run_id)
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run, node, 1
    message = pull_and_inflate_object_from_tree(
        tree, objects.__getitem__, lambda _: None, return_type=Message
    )
    message.metadata.__dict__["_message_id"] = tree.object_id
    try:
        reply = app(message=message, context=Context(run, node, {}, RecordDict(), {}))
    except Exception as fault:
        logging.getLogger("flwr").exception("ClientApp raised an exception")
        reply = Message(Error(RAISED, f"{type(fault)}:<'{fault}'>"), reply_to=message)
    return deflated(reply)


def deflated(message: Any) -> list[bytes]:
    """A message as bytes: without its content, the tree of its objects, and each one's id and
    bytes.
    """
    from flwr.app.message import remove_content_from_message
    from flwr.common.serde import message_to_proto
    from flwr.supercore.inflatable.inflatable_object import (
        get_all_nested_objects,
        get_object_tree,
        no_object_id_recompute,
    )

    message.metadata.__dict__["_message_id"] = message.object_id
    with no_object_id_recompute():
        tree = get_object_tree(message)
        objects = [
            p
            for name, o in get_all_nested_objects(message).items()
            for p in (name.encode(), o.deflate())
        ]
        bare = remove_content_from_message(message) if message.has_content() else message
    return [message_to_proto(bare).SerializeToString(), tree.SerializeToString(), *objects]


# SuperLink.

LAUNCH = 600  # seconds that a ServerApp may take to start
ALIVE = 60  # seconds without a sign of life after which it counts as gone, as in Flower


def patient_starts() -> None:
    """Let an app start on a busy machine.

    SuperLink launches an app a second time, next to the first one, if that takes 30 s to start,
    then a third, and hears none of the earlier ones: where each slows the others down, none ever
    begins.
    """
    from flwr.supercore.corestate import sql_corestate

    vars(sql_corestate).update(HEARTBEAT_DEFAULT_INTERVAL=LAUNCH, HEARTBEAT_PATIENCE=ALIVE / LAUNCH)


@contextmanager
def one_transaction(engine: Any) -> Iterator[Any]:
    """A connection on which Flower makes or changes all tables of its database, or none.

    SQLite would keep each table at once: after a kill between two of them, no later start is
    possible, because the first table is already there.
    """
    from sqlalchemy import create_engine
    from sqlalchemy.pool import NullPool

    with create_engine(engine.url, poolclass=NullPool).connect() as connection:
        sqlite: Any = connection.connection.dbapi_connection
        sqlite.isolation_level = None  # else Python commits
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        yield connection
        connection.commit()


def run_superlink(
    middleware: Sequence[Any], server: Mapping[str, Any], database: int, quiet: Sequence[str]
) -> None:
    """Run SuperLink with the command line's arguments.

    Args:
        middleware: ASGI layers before SuperLink, outermost first.
        server: settings of uvicorn.
        database: seconds that a request waits while others write the database; Flower's own limit
            is 5.
        quiet: paths of requests that are logged only if they fail, as SuperLink does for most of
            its own.
    """
    import uvicorn
    from flwr.supercore.state.alembic import utils
    from flwr.superlink import extensions
    from flwr.superlink.cli import flower_superlink
    from sqlalchemy import event
    from sqlalchemy.pool import Pool

    def patient(connection: Any, *_: Any) -> None:
        connection.execute(f"PRAGMA busy_timeout = {1000 * database}").close()

    event.listen(Pool, "checkout", patient)
    logging.getLogger("uvicorn.access").addFilter(FailuresOf(quiet))
    flower_middleware = extensions.get_middleware
    extensions.get_middleware = lambda: (*middleware, *flower_middleware())
    uvicorn.run = partial(uvicorn.run, **server)
    patient_starts()
    vars(utils)["_migration_bind"] = one_transaction
    flower_superlink()


@dataclass(frozen=True)
class FailuresOf:
    """A filter of uvicorn's access log: requests to these paths are shown only if they fail.

    Nothing that follows one of them is shown, nor any query: a person may have put a token there.
    """

    paths: Sequence[str]

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line is shown."""
        args = record.args
        if not (isinstance(args, tuple) and len(args) == 5 and isinstance(args[4], int)):
            return True
        path = str(args[2]).partition("?")[0]
        path = next((quiet for quiet in self.paths if path.startswith(quiet)), path)
        record.args = (*args[:2], path, *args[3:])
        return path not in self.paths or args[4] >= 400


PIN = "app.sha256"


def bundle(app: Path) -> bytes:
    """The app in a folder, as ``flwr run`` sends it.

    Raises ConfigError without Flower, or for an app that Flower does not accept.
    """
    try:
        from flwr.cli.build import build_fab_from_disk
    except ImportError:
        raise ConfigError(
            "Flower is needed to bundle its app; install pomona-federation again"
        ) from None
    try:
        for path in app.rglob("*"):
            if not path.is_dir():
                files.opened(path, MOST_BYTES).close()  # Flower reads them by their names
        built: bytes = build_fab_from_disk(app)
    except (OSError, ValueError) as fault:
        raise ConfigError(
            f"{app}: Flower does not accept the app ({fault}); copy it from the kit again"
        ) from None
    return built


def bundle_sha256(app: Path) -> str:
    """SHA-256 in hex of the bundle of the app in a folder. Raises ConfigError as ``bundle``."""
    return hashlib.sha256(bundle(app)).hexdigest()


def pinned(kit: Path) -> str:
    """SHA-256 in hex of the app that a kit allows. Raises ConfigError."""
    try:
        text = files.text(kit / PIN, 1000).strip()
    except (OSError, ValueError):
        text = ""
    if len(text) != 64 or set(text) - set("0123456789abcdef"):
        raise ConfigError(f"{kit / PIN} is not a SHA-256; copy it from the kit again")
    return text


def agreed_bundle(kit: Path) -> bytes:
    """The bundle of the app in a server's kit, which must be the pinned one.

    Raises ConfigError for any other app, since every silo would refuse it.
    """
    content, expected = bundle(kit / "app"), pinned(kit)
    digest = hashlib.sha256(content).hexdigest()
    if digest != expected:
        raise ConfigError(
            f"{kit / 'app'} is bundled with SHA-256 {digest[:12]}, but {kit / PIN} and every silo "
            f"pin {expected[:12]}; copy app from the kit again, take the Pomona, Flower and Python "
            "that made the kits, or provision again"
        )
    return content
