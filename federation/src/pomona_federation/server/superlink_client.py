"""Client of SuperLink's control interface: which keys may connect, and which run is active.

It runs in this process, as `flwr` would start an interpreter for every request. The same requests
can be made by hand with `flwr` and FLWR_HOME set to run/flwr of the server's kit.
"""

import hashlib
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from pomona.core.errors import ConfigError, ProtocolError
from pomona.core.files import content
from pomona_federation.agreement import Federation
from pomona_federation.keys import load_public

CONNECTION = "pomona"
APP = "flwr-serverapp"  # the program of a run's ServerApp
# newest runs that are checked: each start of the server makes one, and stops the earlier ones
NEWEST = 1000


@dataclass(frozen=True)
class Node:
    """A silo's key as SuperLink knows it."""

    id: int
    name: str
    status: str  # "registered", "online", "offline", "unregistered"
    key: bytes  # PEM


class SuperLinkClient:
    """SuperLink's control interface.

    Raises ConnectionError without an answer, ProtocolError for a refusal.

    Args:
        address: host:port, on this machine.
        ca: the certificate that signed SuperLink's; None without TLS.
        env: of the ServerApps that it starts.
    """

    def __init__(self, address: str, ca: Path | None, env: Mapping[str, str]) -> None:
        from flwr.supercore.control import ControlHttpClient
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
        from flwr.supercore.runtime import RuntimeHttpClient

        tls = ["--root-certificates", str(ca)] if ca else ["--insecure"]
        monitor = ["--parent-pid", str(os.getpid())]
        self._app = [APP, "--runtime-api-address", address, *monitor, *tls]
        self._env = dict(env)
        options: dict[str, Any] = {
            "server_address": address,
            "insecure": ca is None,
            "root_certificates": content(ca) if ca else None,
            "interceptors": [RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
        }
        self._client = ControlHttpClient.from_server_address(**options)
        self._runtime = RuntimeHttpClient.from_server_address(**options)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
        self._runtime.close()

    def nodes(self) -> list[Node]:
        """All registered nodes."""
        from flwr.proto.control_pb2 import ListNodesRequest

        with _requests():
            nodes = self._client.ListNodes(ListNodesRequest()).nodes_info
        return [
            Node(n.node_id, n.name, n.status, n.public_key)
            for n in nodes
            if n.status != "unregistered"
        ]

    def register(self, name: str, key: bytes) -> None:
        """Allow the holder of a key (PEM) to connect."""
        from flwr.proto.control_pb2 import RegisterNodeRequest

        with _requests():
            self._client.RegisterNode(RegisterNodeRequest(public_key=key, name=name))

    def unregister(self, node: int) -> None:
        """Refuse further connections from a node."""
        from flwr.proto.control_pb2 import UnregisterNodeRequest

        with _requests():
            self._client.UnregisterNode(UnregisterNodeRequest(node_id=node))

    def submit(self, fab: bytes, settings: Mapping[str, str]) -> int:
        """Start a run of an app with its own settings, and its ServerApp. Returns the run's id."""
        from flwr.common.serde import fab_to_proto, user_config_to_proto
        from flwr.proto.control_pb2 import StartRunRequest
        from flwr.supercore.fab import Fab

        bundle = fab_to_proto(Fab(hashlib.sha256(fab).hexdigest(), fab, {}))
        with _requests():
            answer = self._client.StartRun(
                StartRunRequest(fab=bundle, override_config=user_config_to_proto(dict(settings)))
            )
        if not answer.HasField("run_id"):
            raise ProtocolError("SuperLink started no run; look at `pomona server logs`")
        run = int(answer.run_id)
        self._launch(run)
        return run

    def _launch(self, run: int) -> None:
        """Start a run's ServerApp, as SuperExec would, a process that asks for one every second."""
        from flwr.proto.runtime_pb2 import AcquireTaskRequest
        from flwr.supercore.constant import TaskType

        request = AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
        with _requests():
            acquired = self._runtime.AcquireTask(request)
        if acquired.task.run_id != run or not acquired.token:
            raise ProtocolError(
                "SuperLink does not let the run begin; look at `pomona server logs`"
            )
        subprocess.Popen(
            [*self._app, "--token", acquired.token],
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def unfinished(self) -> list[int]:
        """The runs that still wait for a ServerApp, or count as running; these are always among the
        newest.
        """
        from flwr.common.constant import Status
        from flwr.proto.control_pb2 import ListRunsRequest

        with _requests():
            runs = self._client.ListRuns(ListRunsRequest(limit=NEWEST)).run_dict
        return sorted(int(k) for k, run in runs.items() if run.status.status != Status.FINISHED)

    def stop(self, run: int) -> None:
        """Stop a run that still counts as running."""
        from flwr.proto.control_pb2 import StopRunRequest

        with _requests():
            self._client.StopRun(StopRunRequest(run_id=run))


@contextmanager
def _requests() -> Iterator[None]:
    import httpx

    try:
        yield
    except httpx.HTTPStatusError as fault:
        raise ProtocolError(
            f"SuperLink refuses ({fault.response.text[:200]}); look at `pomona server logs`"
        ) from None
    except httpx.HTTPError as fault:
        raise ConnectionError(f"SuperLink does not answer ({fault})") from None


def pem(key: str) -> bytes:
    """Convert an OpenSSH public key (EC P-384) to PEM, by which SuperLink knows it.

    Raises ConfigError.
    """
    try:
        public = load_public(key.encode())
    except ValueError as fault:
        raise ConfigError(f"a key {fault}; give the file silo.pub of the silo") from None
    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def changes(allowed: Mapping[str, bytes], nodes: list[Node]) -> tuple[dict[str, bytes], list[Node]]:
    """The keys to register, by silo, and the nodes to unregister, so that SuperLink knows exactly
    the wanted keys.
    """
    keys = {node.key for node in nodes}
    return {n: k for n, k in allowed.items() if k not in keys}, [
        n for n in nodes if n.key not in set(allowed.values())
    ]


def sync_keys(client: SuperLinkClient, allowed: Mapping[str, bytes]) -> list[tuple[str, str]]:
    """Make SuperLink know exactly the wanted keys, by silo.

    Returns the changes as (event, silo) pairs.
    """
    new, removed = changes(allowed, client.nodes())
    for name, key in new.items():
        client.register(name, key)
    for node in removed:
        client.unregister(node.id)
    return [
        *(("registered", name) for name in new),
        *(("unregistered", node.name) for node in removed),
    ]


def connection(federation: Federation, ca: Path) -> dict[str, Any]:
    """``config.toml`` of Flower's folder, for the `flwr` command line."""
    security = {"insecure": True} if federation.insecure else {"root-certificates": str(ca)}
    return {
        "superlink": {"default": CONNECTION, CONNECTION: {"address": federation.inside, **security}}
    }
