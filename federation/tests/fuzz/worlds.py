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
class Said:
    """One exchange with silo-1: request and answer, and the silo's state afterwards."""

    asked: Message
    answered: Message
    state: Path


class Cut(NullCallback):
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
        self._said: dict[str, Said] = {}
        self._visits: list[tuple[object, object]] = []
        (self.outside / "precious").write_text("nobody's business")

    def copy(self, of: Path, name: str) -> Callable[[], Path]:
        """A function that gives the folder ``name`` another one's content, as it was when this was
        called.
        """
        template, work = self.folder / f"{name}-as-it-was", self.folder / name
        shutil.copytree(of, template, ignore=shutil.ignore_patterns(PIPE))

        def anew() -> Path:
            shutil.rmtree(work, ignore_errors=True)
            shutil.copytree(template, work)
            return work

        return anew

    @cached_property
    def federation(self) -> Federation:
        """Three silos with APPLE, which have run."""
        home = self.folder / "federation"
        home.mkdir()
        made = Federation(home, settings(method="apple", rounds=2), wait=0.0, places=5)
        made.grid.faults.append(self._note)
        visit = FlowerTransport.visit

        def noted(transport, *words):
            self._visits.append(words)
            return visit(transport, *words)

        with patch.object(FlowerTransport, "visit", noted):
            made.run()
        return made

    def _note(self, message, reply):
        if message.metadata.dst_node_id == ROGUE:
            number = len(self._said)  # hello, round 1, round 2, the closing visit
            kept = self.folder / "states" / str(number)
            state = self.folder / "federation" / "kits" / "silo-1" / "state"
            shutil.copytree(state, kept)
            asked = flower_apps.unpacked(message.content)
            answered = flower_apps.unpacked(reply.content)
            self._said[("hello", "first", "second", "closing")[number]] = Said(
                asked, answered, kept
            )
        return reply

    @property
    def said(self) -> dict[str, Said]:
        """The exchanges of the server and silo-1, by subject."""
        assert self.federation
        return self._said

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
    def cut(self) -> Path:
        """A run interrupted after the first of two rounds."""
        try:
            pomona.run(resolve(SMALL), self.folder / "cut", Cut())
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
        with ThreadPoolExecutor(1) as here:
            run_bench(SUITE, self.folder / "bench", here)
        return self.folder / "bench"
