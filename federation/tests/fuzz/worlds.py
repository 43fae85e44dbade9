"""Sources of valid inputs: a federation of three silos after its run, a run, an interrupted run, a
bench.
"""

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from unittest.mock import patch

import pomona
from federation_in_process import Federation, settings
from pomona.config import resolve
from pomona.experiments import run as run_bench
from pomona.federation.callbacks import NullCallback
from pomona_federation import flower_apps
from pomona_federation.messages.message_bus import Message
from pomona_federation.server.flower_transport import FlowerTransport
from pomona_federation.server.long_poll import PIPE

SMALL = {
    "data": {"name": "digits", "train_limit": 120, "test_limit": 60},
    "model": {"name": "mlp", "hidden": [4]},
    "partition": {"name": "iid"},
    "clients": 3,
    "rounds": 2,
    "lr": 0.1,
    "workers": 1,
    "method": "apple",
}
PRIVATE = {
    "noise_multiplier": 1.0, "max_grad_norm": 1.0, "delta": 1e-3, "seed": 1,
    "acknowledge": ["metrics", "sample-counts", "training-loss", "unlimited-epsilon"],
}  # fmt: skip
SUITE = {
    "title": "Two methods",
    "reference": {
        "title": "a table", "average": "last", "settings": {"rounds": 20},
        "scenario": {"iid": {"numbers": {"FedAvg": {"value": 95.7, "std": 0.1, "note": "n"}}}},
    },
    "points": 2,
    "search": {"lr": [0.1, 0.3]},
    "base": {k: v for k, v in SMALL.items() if k not in ("method", "lr", "workers")},
    "scenario": {"iid": {}},
    "method": {"separate": {}, "fedavg": {"search": {"method": {}}}},
}  # fmt: skip
ROGUE = 11  # the node of silo-1


@dataclass(frozen=True)
class Exchange:
    """One exchange with silo-1: request and answer, and the silo's state afterwards."""

    request: Message
    answer: Message
    state: Path


class Interruption(NullCallback):
    """Ends a run after its first round."""

    def on_round_end(self, row, evaluations):
        """Raise to leave the run."""
        raise KeyboardInterrupt


class World:
    """Created on first use, never changed afterwards."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.outside = folder / "outside"
        self.outside.mkdir()
        self._exchanges: dict[str, Exchange] = {}
        self._visits: list[tuple[object, object]] = []
        (self.outside / "precious").write_text("nobody's business")

    def copy(self, source: Path, name: str) -> Callable[[], Path]:
        """A function that gives the folder ``name`` another one's content, as it was when this was
        called.
        """
        template, work = self.folder / f"{name}-as-it-was", self.folder / name
        shutil.copytree(source, template, ignore=shutil.ignore_patterns(PIPE))

        def anew() -> Path:
            shutil.rmtree(work, ignore_errors=True)
            shutil.copytree(template, work)
            return work

        return anew

    @cached_property
    def federation(self) -> Federation:
        """Three silos with APPLE, which have run."""
        folder = self.folder / "federation"
        folder.mkdir()
        federation = Federation(folder, settings(method="apple", rounds=2), wait=0.0, places=5)
        federation.grid.faults.append(self._note)
        visit = FlowerTransport.visit

        def noted(transport, *arguments):
            self._visits.append(arguments)
            return visit(transport, *arguments)

        with patch.object(FlowerTransport, "visit", noted):
            federation.run()
        return federation

    def _note(self, message, reply):
        if message.metadata.dst_node_id == ROGUE:
            number = len(self._exchanges)  # hello, round 1, round 2, the closing visit
            copy = self.folder / "states" / str(number)
            state = self.folder / "federation" / "kits" / "silo-1" / "state"
            shutil.copytree(state, copy)
            request = flower_apps.unpacked(message.content)
            answer = flower_apps.unpacked(reply.content)
            self._exchanges[("hello", "first", "second", "closing")[number]] = Exchange(
                request, answer, copy
            )
        return reply

    @property
    def exchanges(self) -> dict[str, Exchange]:
        """The exchanges of the server and silo-1, by subject."""
        assert self.federation
        return self._exchanges

    @property
    def visits(self) -> list[tuple[object, object]]:
        """Requests of the server's round loop to its transport."""
        assert self.federation
        return self._visits

    @property
    def kit(self) -> Path:
        return self.federation.kits / "silo-1"

    @cached_property
    def run(self) -> Path:
        """A finished run."""
        pomona.run(resolve(SMALL), self.folder / "run")
        return self.folder / "run"

    @cached_property
    def interrupted(self) -> Path:
        """A run interrupted after the first of two rounds."""
        try:
            pomona.run(resolve(SMALL), self.folder / "cut", Interruption())
        except KeyboardInterrupt:
            return self.folder / "cut"
        raise AssertionError("it was not interrupted")

    @cached_property
    def private(self) -> Path:
        """A finished private run, with keys and ledgers."""
        pomona.run(
            resolve(SMALL, {"method": "fedavg", "privacy": PRIVATE}), self.folder / "private"
        )
        return self.folder / "private"

    @cached_property
    def bench(self) -> Path:
        """A finished bench."""
        with ThreadPoolExecutor(1) as executor:
            run_bench(SUITE, self.folder / "bench", executor)
        return self.folder / "bench"
