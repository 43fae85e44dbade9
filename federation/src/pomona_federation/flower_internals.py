"""Functions of Flower that Pomona replaces or calls beyond its documented interface; any release may change them.

Apart from plain imports all of it is in this module, and ``federation/tests/test_flower_internals.py`` fails with the
name of whatever is gone or has changed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NoReturn

IDLE, REPLY = 3.0, 0.5  # a SuperNode's sleeps in seconds: no message yet; no answer, or only part of one, yet

Pull = Callable[..., int | None]
Push = Callable[..., None]


def wrap_pull(around: Callable[[Pull], Pull]) -> None:
    """Replace the function by which a SuperNode fetches and stores one message; it returns the run's id, or None."""
    from flwr.supernode import start_client_internal as node

    node._pull_and_store_message = around(node._pull_and_store_message)


def wrap_push(around: Callable[[Push], Push]) -> None:
    """Replace the function by which a SuperNode waits for the answer to the message that it fetched, and sends it."""
    from flwr.supernode import start_client_internal as node

    node._push_messages = around(node._push_messages)


@dataclass(frozen=True)
class OneAnswer:
    """A SuperNode's state limited to the answers to one message; other answers are dropped when found.

    A SuperNode sends any answer that is there, then fetches the next message. If the run of a message ended while it
    was being fetched, nobody waits for its answer, but the app still gives one: sent in place of the next message's, it
    would leave this node one answer late for good.
    """

    state: Any
    store: Any
    message: Any

    def __getattr__(self, name: str) -> Any:  # everything else
        return getattr(self.state, name)

    def get_messages_legacy(self, **which: Any) -> list[Any]:
        """Answers to the current message, not yet taken."""
        awaited = list[Any]()
        for found in self.state.get_messages_legacy(**which):
            if found.metadata.reply_to_message_id == self.message.metadata.message_id:
                awaited.append(found)
                continue
            ids = [found.metadata.message_id, found.metadata.reply_to_message_id]
            self.state.delete_messages(message_ids=ids)
            self.store.delete(found.metadata.message_id)
        return awaited


def replace_waits(waits: dict[float, Callable[[], None]]) -> None:
    """Replace a SuperNode worker's waits, by the seconds that Flower would sleep."""
    from flwr.supernode import start_client_internal as node

    vars(node)["time"] = SimpleNamespace(sleep=lambda seconds: waits[seconds]())


def replace_fleet_client(make: Callable[[], Any]) -> None:
    """Make a SuperNode use our HTTP client (httpx) for everything it sends to the server."""
    from flwr.supernode import fleet_http_connection as module
    from flwr.supernode.fleet_http_client import FleetHttpClient

    class FleetClient(FleetHttpClient):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self._client.close()
            self._client = make()

    vars(module)["FleetHttpClient"] = FleetClient


def wrap_runtime(around: Callable[[Any], Any]) -> None:
    """Wrap the runtime that a SuperNode serves in an ASGI middleware."""
    from flwr.supernode import main as module

    make = module.create_app
    vars(module)["create_app"] = lambda **options: around(make(**options))


def replace_hooks(hooks: dict[str, list[Callable[..., None]]]) -> None:
    """Set these hooks on every HTTP client (httpx) that Flower creates in this process from now on."""
    from flwr.supercore.protobuf.client import ProtobufClient

    made = ProtobufClient.__init__

    def init(self: Any, *args: Any, **options: Any) -> None:
        made(self, *args, **options)
        self._client.event_hooks = hooks

    setattr(ProtobufClient, "__init__", init)  # noqa: B010 - mypy lets no method be assigned


def refuse(message: Any, code: int, reason: str, state: Any, store: Any) -> int:
    """Answer a fetched message with an error, without starting an app. Returns the run's id."""
    from flwr.app import Error, Message
    from flwr.supernode import start_client_internal as node

    node._insert_message(Message(Error(code, reason), reply_to=message), state, store)
    return int(message.metadata.run_id)


def abandoned(state: Any) -> bool:
    """Whether a SuperNode has no waiting, starting or running task left; a silent task ends after a minute."""
    from flwr.common.constant import Status

    return not state.get_tasks(statuses=[Status.PENDING, Status.STARTING, Status.RUNNING], limit=1)


def federated(run: Any) -> bool:
    """Whether a run belongs to a federation, that is, has a ServerApp."""
    from flwr.supercore.constant import TaskType

    return bool(run.primary_task_type == TaskType.SERVER_APP)


def run_supernode() -> None:
    """Run the SuperNode with the command line's arguments."""
    from flwr.supernode.cli import flower_supernode

    flower_supernode()


def run_superexec(address: str, executor: Any, secret: bytes) -> None:
    """Run Flower's SuperExec on loopback with our executor, which authenticates to the runtime by a secret.

    Starts no thread.
    """
    from flwr.supercore.superexec import run_superexec as module

    vars(module)["get_executor"] = lambda *_, **__: executor
    module.run_superexec(address, insecure=True, superexec_auth_secret=secret)


def run_client_app(spec: Any, require: Callable[[Any, Any], None]) -> NoReturn:
    """Do one task in this process, as ``flwr-clientapp`` does, and raise SystemExit.

    ``require`` raises for a run and its app that must not be executed, before anything of the app is unpacked.
    """
    from flwr.supernode.runtime.run_clientapp import pull_task_input, run_clientapp

    def pulled(client: Any) -> tuple[Any, Any, Any, Any]:
        message, context, run, fab = pull_task_input(client)
        require(run, fab)
        return message, context, run, fab

    run_clientapp.__globals__["pull_task_input"] = pulled
    run_clientapp(spec.runtime_api_address, spec.token, spec.insecure)
    raise SystemExit(0)


def app_identity(bundle: bytes) -> tuple[str, str]:
    """The id and version in an app's bundle."""
    from flwr.cli.config_utils import get_fab_metadata

    name, version = get_fab_metadata(bundle)
    return name, version


def client_app_tasks() -> set[Any]:
    """The kinds of task that a silo's resident process handles."""
    from flwr.supercore.constant import TaskType

    return {TaskType.CLIENT_APP}


def accepted() -> Any:
    """An executor's answer to a task that it has started."""
    from flwr.supercore.superexec.executor.types import LaunchResult

    return LaunchResult.accepted()


def leave_out_of_the_log(*paths: str) -> None:
    """Make SuperLink log requests to further paths only if they fail, as it does for most of its own."""
    from flwr.supercore import http_logging

    http_logging.ROUTINE_ACCESS_PATHS |= set(paths)


def wait_for_database(seconds: int) -> None:
    """Make SuperLink wait this long for its database while another request writes it; Flower's default is 5 s."""
    from flwr.supercore import sql_mixin
    from flwr.supercore.constant import SQLITE_PRAGMAS

    others = tuple(pragma for pragma in SQLITE_PRAGMAS if pragma[0] != "busy_timeout")
    vars(sql_mixin)["SQLITE_PRAGMAS"] = (("busy_timeout", str(1000 * seconds)), *others)
