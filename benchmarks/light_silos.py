"""Cost of many silos at the server's SuperLink: light silos in one process against a real SuperLink
behind our gate.

    python benchmarks/light_silos.py [--quick] [silos=100] [size=610]

Every light silo is a thread with Flower's own connection, as a silo's node has it: it activates its
node, signs its requests, sends heartbeats, fetches each message with its objects, and pushes an
answer of the same size. Only the silo's process and its computation are left out. The run's
ServerApp sends one row of ``size`` numbers to every silo through our bus, and takes the answers.
"CPU s" is SuperLink's processor time from the start of the first round to the end of the last, per
silo and round; "requests" are those of the silos, per silo and round; "MB" is SuperLink's high-
water mark (VmHWM), "MB before" the same before the first round. "round s" is a median; all of these
share the machine's cores. Linux only.
"""

import logging
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Any

import httpx
import psutil

from memory import field
from peers_deployment import flower_noop
from pomona_federation.agreement import Federation
from pomona_federation.messages.message_bus import Message, packed
from pomona_federation.server import superlink
from pomona_federation.server.superlink_client import pem
from pomona_federation.supervision.supervisor import environment
from timing import Table, chosen, publish

LIMIT = 3600.0  # seconds until a round must have come
SERVER_APP = """
import time
from pathlib import Path
from flwr.serverapp import ServerApp
from pomona_federation.messages.message_bus import Message, Outgoing
from pomona_federation.server.gate import publish_uplink_limit
from pomona_federation.server.flower_bus import FlowerBus
app = ServerApp()
@app.main()
def main(grid, context):
    known, out = context.run_config, Path(context.run_config["out"])
    publish_uplink_limit(out.parent, 4 * known["size"] + 10000)
    bus = FlowerBus.listening(grid, out.parent)
    while len(nodes := bus.online()) < known["silos"]:
        time.sleep(0.2)
    for number in range(known["rounds"] + 1):
        with out.open("a") as file:
            file.write(f"{time.time()}\\n")
        if number == known["rounds"]:
            break
        message = Message("task", "{}", "", {"row": bytes(4 * known["size"])})
        waiting = set(bus.send([Outgoing(node, message, 600.0) for node in sorted(nodes)]))
        while waiting:
            waiting -= bus.fetch(sorted(waiting)).keys()
            if waiting:
                bus.wait(1.0)
"""


@dataclass(frozen=True)
class Size:
    """Numbers of silos, model parameters and rounds."""

    silos: int
    rounds: int
    numbers: int


FULL, QUICK = Size(100, 3, 610), Size(3, 2, 610)


@dataclass
class Requests:
    """Counts httpx requests in this process."""

    number: int = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count requests within the block."""
        send = httpx.Client.send

        def counting(client: httpx.Client, request: httpx.Request, **how: Any) -> httpx.Response:
            self.number += 1
            return send(client, request, **how)

        httpx.Client.send = counting  # type: ignore[assignment, method-assign]
        try:
            yield
        finally:
            httpx.Client.send = send  # type: ignore[method-assign]


def light_silo(kit: Path, address: str, numbers: int, over: list[bool]) -> None:
    """Take part until the run is over."""
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    from flwr.app import Message as FlowerMessage
    from flwr.supercore.object_store import ObjectStoreFactory
    from flwr.supernode import start_client_internal as node
    from flwr.supernode.fleet_http_connection import http_request_response
    from flwr.supernode.nodestate import NodeStateFactory

    key: Any = load_ssh_private_key((kit / "keys" / "silo.key").read_bytes(), None)
    store = ObjectStoreFactory()
    state, objects = NodeStateFactory(store).state(), store.store()
    with http_request_response(
        address, False, str(kit / "certs" / "ca.crt"), (key, key.public_key())
    ) as connection:
        number, receive, send, get_run, get_fab, pull_object, push_object, confirm = connection
        state.set_node_id(number)
        while not over:
            got: list[Any] = []
            began = time.monotonic()

            def receiving(into: list[Any] = got) -> Any:
                found = receive()
                into.extend([found[0]] if found else [])
                return found

            more = {
                "trusted_entities": None,
                "node_config": {},
                "confirm_message_received": confirm,
            }
            calls = {
                "receive": receiving,
                "get_run": get_run,
                "get_fab": get_fab,
                "pull_object": pull_object,
            }
            if (
                node._pull_and_store_message(state=state, object_store=objects, **calls, **more)
                is None
            ):
                # as a silo's, where nothing was held
                time.sleep(0.0 if time.monotonic() - began > 0.25 else 3.0)
                continue
            content = packed(Message("answer", "{}", "", {"uplink": bytes(4 * numbers)}))
            node._insert_message(FlowerMessage(content, reply_to=got[0]), state, objects)
            node._push_messages(
                state=state, object_store=objects, send=send, push_object=push_object
            )


def measure(size: Size) -> Table:
    """One row."""
    logging.getLogger("flwr").setLevel(logging.CRITICAL)  # it speaks of each message
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made, address = flower_noop.kits(folder, size.silos)
        server, run = made / "server", made / "server" / "run"
        run.mkdir(exist_ok=True)
        content, out = flower_noop.app(folder / "app", server_app=SERVER_APP), run / "marks"
        os.environ.update({k: v for k, v in environment(folder).items() if k.startswith("FLWR_")})
        requests, over = Requests(), list[bool]()
        with flower_noop.processes(folder) as running, requests.counted():
            link = running.start(
                "link", superlink.command(server, Federation.read(server / "federation.toml"))
            )
            client = flower_noop.connected(address, server / "certs" / "ca.crt")
            for k in range(size.silos):
                client.register(f"silo-{k}", pem((server / "keys" / f"silo-{k}.pub").read_text()))
                how = (made / f"silo-{k}", address, size.numbers, over)
                Thread(target=light_silo, args=how, daemon=True).start()
            words = {
                "out": str(out),
                "silos": size.silos,
                "rounds": size.rounds,
                "size": size.numbers,
            }
            run = client.submit(content, words)
            process = psutil.Process(link.pid)

            def reached(number: int) -> tuple[float, int, int]:
                limit = time.monotonic() + LIMIT
                while not out.exists() or len(out.read_text().splitlines()) < number:
                    assert time.monotonic() < limit, f"round {number} did not come"
                    assert run in client.unfinished(), (folder / "link.log").read_text()[-3000:]
                    time.sleep(0.2)
                spent = process.cpu_times()
                return (
                    spent.user + spent.system,
                    requests.number,
                    field(str(link.pid), "status", "VmHWM"),
                )

            before, after = reached(1), reached(size.rounds + 1)
            over.append(True)
            client.close()
            marks = [float(line) for line in out.read_text().splitlines()]
    each = size.silos * size.rounds
    return {
        "round s": median(b - a for a, b in pairwise(marks)),
        "CPU s": (after[0] - before[0]) / each,
        "requests": (after[1] - before[1]) / each,
        "MB before": before[2] / 1e6,
        "MB": after[2] / 1e6,
    }


def main(size: Size, words: list[str]) -> list[Table]:
    """Measure and print."""
    given = {key: int(value) for key, _, value in (word.partition("=") for word in words)}
    assert given.keys() <= {"silos", "size"}, given
    chosen_size = Size(given.get("silos", size.silos), size.rounds, given.get("size", size.numbers))
    row = measure(chosen_size)
    return [
        publish(
            "SuperLink with light silos", {f"{chosen_size.silos} silos": row}, 1, rounds=size.rounds
        )
    ]


if __name__ == "__main__":
    main(*chosen(QUICK, FULL))
