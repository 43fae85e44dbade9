"""The problems of ``pomona.testing``, a small scenario that needs no files, and the notes of a run."""

from pathlib import Path

from safetensors.torch import load_file

from pomona.config import Config
from pomona.core.round import Round
from pomona.federation.admission import Admission, Expected, History, admit
from pomona.federation.callbacks import NullCallback
from pomona.federation.exchange import Arrival
from pomona.methods import METHODS
from pomona.methods.base import MethodSettings
from pomona.storage.safetensors_stream import digest
from pomona.testing import Federation, Quadratics, a_round, quadratics
from pomona.testing.conformance import small
from pomona.testing.problems import Problem, equal, states, suited, uneven
from pomona.testing.problems import passes as of_settings

__all__ = [
    "PASSES",
    "Federation",
    "Notes",
    "Quadratics",
    "a_round",
    "digest_of_models",
    "equal",
    "judged",
    "passes",
    "quadratics",
    "states",
    "suited",
    "tiny",
    "trained",
    "uneven",
]

PASSES = {"epochs": 2, "batch_size": 2, "momentum": 0.9, "lr": 0.05, "weight_decay": 0.1}
"""A round in which everything counts that a client's steps depend on."""


class Notes(NullCallback):
    """A callback that keeps a run's notes, in ``said``."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def on_note(self, text: str) -> None:
        self.said.append(text)


def tiny(name: str, settings: dict | None = None, **overrides: object) -> Config:
    """A few rounds of a method on digits, small enough for any test."""
    return small({"name": name, **(settings or {})}, **overrides)


def passes(name: str, number: int = 1, **overrides: object) -> Round:
    """A round of three shuffled passes, as the conformance checks have it."""
    return of_settings(METHODS[name](), number, **overrides)


def trained(
    settings: MethodSettings, problem: Problem, rounds: int = 3, **overrides: object
) -> Federation:
    """A federation after some rounds of ``PASSES``, or of other fields of Round."""
    run = Federation(settings.method(), problem)
    for number in range(1, rounds + 1):
        run.round(a_round(number, **(overrides or PASSES)))
    return run


def judged(run: Federation) -> Admission:
    """Admission's verdict on the replies of a federation's last round."""
    server, sizes = run.method.server, {r.client: run.roster.sizes[r.client] for r in run.replies}
    spec, additional = server.uplink_form(run.server), run.method.card.exchange.non_model_entries()
    expected = Expected("run", 1, sizes, spec, len(run.roster), server.invalid, additional)
    return admit([Arrival(r, "run", 1, sizes[r.client]) for r in run.replies], expected, History())


def digest_of_models(folder: Path) -> str:
    """The hash of every tensor of a finished run."""
    files = sorted([*folder.glob("models/*.safetensors"), *folder.glob("private/*.safetensors")])
    tensors = {
        f"{path.parent.name}/{path.name}/{k}": t
        for path in files
        for k, t in load_file(path).items()
    }
    return digest(tensors)
