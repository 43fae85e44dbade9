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
    config, out = context.run_config, Path(context.run_config["out"])
    publish_uplink_limit(out.parent, 4 * config["size"] + 10000)
    bus = FlowerBus.listening(grid, out.parent)
    while len(nodes := bus.online()) < config["silos"]:
        time.sleep(0.2)
    for number in range(config["rounds"] + 1):
        with out.open("a") as file:
            file.write(f"{time.time()}\\n")
        if number == config["rounds"]:
            break
        message = Message("task", "{}", "", {"row": bytes(4 * config["size"])})
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

        def counting(
            client: httpx.Client, request: httpx.Request, **options: Any
        ) -> httpx.Response:
            self.number += 1
            return send(client, request, **options)

        httpx.Client.send = counting  # type: ignore[assignment, method-assign]
        try:
            yield
        finally:
            httpx.Client.send = send  # type: ignore[method-assign]


def light_silo(kit: Path, address: str, numbers: int, finished: list[bool]) -> None:
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
        while not finished:
            received: list[Any] = []
            start_time = time.monotonic()

            def receiving(messages: list[Any] = received) -> Any:
                message = receive()
                messages.extend([message[0]] if message else [])
                return message

            options = {
                "trusted_entities": None,
                "node_config": {},
                "confirm_message_received": confirm,
            }
            callbacks = {
                "receive": receiving,
                "get_run": get_run,
                "get_fab": get_fab,
                "pull_object": pull_object,
            }
            if (
                node._pull_and_store_message(
                    state=state, object_store=objects, **callbacks, **options
                )
                is None
            ):
                # as a silo's, where nothing was held
                time.sleep(0.0 if time.monotonic() - start_time > 0.25 else 3.0)
                continue
            content = packed(Message("answer", "{}", "", {"uplink": bytes(4 * numbers)}))
            node._insert_message(FlowerMessage(content, reply_to=received[0]), state, objects)
            node._push_messages(
                state=state, object_store=objects, send=send, push_object=push_object
            )


def measure(size: Size) -> Table:
    """One row."""
    logging.getLogger("flwr").setLevel(logging.CRITICAL)  # it logs each message
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kits, address = flower_noop.kits(folder, size.silos)
        server, run = kits / "server", kits / "server" / "run"
        run.mkdir(exist_ok=True)
        content, output = flower_noop.app(folder / "app", server_app=SERVER_APP), run / "marks"
        os.environ.update({k: v for k, v in environment(folder).items() if k.startswith("FLWR_")})
        requests, finished = Requests(), list[bool]()
        with flower_noop.processes(folder) as running, requests.counted():
            link = running.start(
                "link", superlink.command(server, Federation.read(server / "federation.toml"))
            )
            client = flower_noop.connected(address, server / "certs" / "ca.crt")
            for k in range(size.silos):
                client.register(f"silo-{k}", pem((server / "keys" / f"silo-{k}.pub").read_text()))
                arguments = (kits / f"silo-{k}", address, size.numbers, finished)
                Thread(target=light_silo, args=arguments, daemon=True).start()
            run_config = {
                "out": str(output),
                "silos": size.silos,
                "rounds": size.rounds,
                "size": size.numbers,
            }
            run = client.submit(content, run_config)
            process = psutil.Process(link.pid)

            def reached(number: int) -> tuple[float, int, int]:
                limit = time.monotonic() + LIMIT
                while not output.exists() or len(output.read_text().splitlines()) < number:
                    assert time.monotonic() < limit, f"round {number} did not come"
                    assert run in client.unfinished(), (folder / "link.log").read_text()[-3000:]
                    time.sleep(0.2)
                times = process.cpu_times()
                return (
                    times.user + times.system,
                    requests.number,
                    field(str(link.pid), "status", "VmHWM"),
                )

            initial, final = reached(1), reached(size.rounds + 1)
            finished.append(True)
            client.close()
            marks = [float(line) for line in output.read_text().splitlines()]
    exchanges = size.silos * size.rounds
    return {
        "round s": median(b - a for a, b in pairwise(marks)),
        "CPU s": (final[0] - initial[0]) / exchanges,
        "requests": (final[1] - initial[1]) / exchanges,
        "MB before": initial[2] / 1e6,
        "MB": final[2] / 1e6,
    }


def main(size: Size, arguments: list[str]) -> list[Table]:
    """Measure and print."""
    options = {
        key: int(value) for key, _, value in (argument.partition("=") for argument in arguments)
    }
    assert options.keys() <= {"silos", "size"}, options
    chosen_size = Size(
        options.get("silos", size.silos), size.rounds, options.get("size", size.numbers)
    )
    row = measure(chosen_size)
    return [
        publish(
            "SuperLink with light silos", {f"{chosen_size.silos} silos": row}, 1, rounds=size.rounds
        )
    ]


if __name__ == "__main__":
    main(*chosen(QUICK, FULL))
