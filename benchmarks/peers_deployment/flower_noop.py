"""A plain Flower federation whose silos do nothing: its own commands, TLS, node keys, default
isolation.

The keys and certificates are those of a kit that Pomona provisions; nothing else of Pomona runs.
"""

import json
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import tomli_w

from pomona_federation.flower_internals import bundle
from pomona_federation.provision.provision import provision
from pomona_federation.rehearsal.run import free_ports
from pomona_federation.server.superlink_client import SuperLinkClient, pem
from pomona_federation.supervision.supervisor import (
    adopt,
    disown,
    end,
    environment,
    process_tree,
    reap,
)

LIMIT = 600.0  # seconds
APP = {
    "pyproject.toml": """
[project]
name = "noop"
version = "1.0.0"
dependencies = ["flwr"]
[tool.flwr.app]
publisher = "bench"
[tool.flwr.app.components]
serverapp = "noop.server_app:app"
clientapp = "noop.client_app:app"
[tool.flwr.app.config]
out = ""
silos = 0
rounds = 0
size = 0
""",
    "noop/__init__.py": "",
    "noop/client_app.py": """
from flwr.app import Message
from flwr.clientapp import ClientApp
app = ClientApp()
@app.train()
def train(message, context):
    return Message(message.content, reply_to=message)
""",
    "noop/server_app.py": """
import json, time
from pathlib import Path
import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.serverapp import ServerApp
app = ServerApp()
@app.main()
def main(grid, context):
    config, marks = context.run_config, []
    while len(nodes := list(grid.get_node_ids())) < config["silos"]:
        time.sleep(0.2)
    model = ArrayRecord({"w": Array(np.zeros(config["size"], np.float32))})
    for number in range(config["rounds"]):
        marks.append(time.time())
        messages = [Message(RecordDict({"model": model}), node, "train") for node in nodes]
        assert len(list(grid.send_and_receive(messages, timeout=300))) == len(nodes)
    marks.append(time.time())
    Path(config["out"]).write_text(json.dumps(marks))
""",
}


def app(folder: Path, **modules: str) -> bytes:
    """The bundle of the no-op app; ``modules``: the text of modules to replace its own."""
    for name, text in {
        **APP,
        **{f"noop/{name}.py": text for name, text in modules.items()},
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.lstrip())
    return bundle(folder)


@contextmanager
def processes(folder: Path) -> Iterator["Processes"]:
    """Processes that end with the block, with all their descendants."""
    adopt()
    group = Processes(folder)
    try:
        yield group
    finally:
        end(
            lambda: [
                p
                for process in group.all
                if process.poll() is None
                for p in process_tree(process.pid)
            ],
            patience=10.0,
        )
        for process in group.all:
            process.wait(5)
        reap()
        disown()


class Processes:
    """Started processes, each with a log in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.all = folder, list[subprocess.Popen[bytes]]()

    def start(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a command in its own session, with its own home for Flower."""
        flower_home = self.folder / f"home-{name}"
        flower_home.mkdir()
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                list(command),
                env=environment(flower_home),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            self.all.append(process)
        return self.all[-1]


def kits(folder: Path, silos: int) -> tuple[Path, str]:
    """Keys and certificates for this many silos, and the address of their server."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    federation = {
        "name": "noop",
        "server": address,
        "places": silos,
        "run": {"method": "fedavg", "rounds": 1, "lr": 0.1, "model": {"name": "logistic"}},
        "task": {"kind": "table", "input_shape": [4], "classes": ["a", "b"]},
        "silo": [{"name": f"silo-{k}"} for k in range(silos)],
    }
    (folder / "federation.toml").write_text(tomli_w.dumps(federation))
    provision(folder / "federation.toml", folder / "kits")
    return folder / "kits", address


def connected(address: str, ca: Path) -> SuperLinkClient:
    """A connection to a SuperLink, once it answers."""
    limit = time.monotonic() + LIMIT
    while True:
        try:
            client = SuperLinkClient(address, ca)
            client.nodes()
        except ConnectionError:
            assert time.monotonic() < limit, "no SuperLink"
            time.sleep(0.2)
        else:
            return client


def rounds(folder: Path, silos: int, number: int, size: int) -> tuple[float, list[float]]:
    """Seconds from the first process to the first round, and of each round."""
    kits_folder, address = kits(folder, silos)
    certs, output, content = (
        kits_folder / "server" / "certs",
        folder / "marks.json",
        app(folder / "app"),
    )
    os.environ.update({k: v for k, v in environment(folder).items() if k.startswith("FLWR_")})
    with processes(folder) as running:
        start_time = time.time()
        running.start(
            "link",
            [
                *("flower-superlink", "--host", "127.0.0.1", "--port", address.rpartition(":")[2]),
                *("--database", str(folder / "link.db"), "--enable-supernode-auth"),
                *(
                    "--ssl-ca-certfile",
                    str(certs / "ca.crt"),
                    "--ssl-certfile",
                    str(certs / "server.crt"),
                ),
                *("--ssl-keyfile", str(certs / "server.key")),
            ],
        )
        client = connected(address, certs / "ca.crt")
        for k, port in enumerate(free_ports(silos)):
            kit = kits_folder / f"silo-{k}"
            client.register(
                f"silo-{k}", pem((kits_folder / "server" / "keys" / f"silo-{k}.pub").read_text())
            )
            running.start(
                f"silo-{k}",
                [
                    *(
                        "flower-supernode",
                        "--superlink",
                        address,
                        "--host",
                        "127.0.0.1",
                        "--port",
                        str(port),
                    ),
                    *("--root-certificates", str(kit / "certs" / "ca.crt")),
                    *("--auth-supernode-private-key", str(kit / "keys" / "silo.key")),
                ],
            )
        client.submit(content, {"out": str(output), "silos": silos, "rounds": number, "size": size})
        limit = time.monotonic() + LIMIT
        while not output.exists() or not output.stat().st_size:
            assert time.monotonic() < limit, f"Flower's rounds did not end; logs in {folder}"
            time.sleep(0.1)
        client.close()
        marks = json.loads(output.read_text())
    return marks[0] - start_time, [later - earlier for earlier, later in pairwise(marks)]
