"""The evaluation that a run is judged by: its headline model in one round, on test samples."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from pomona.metrics.best_round import best
from pomona.record.result import Result
from pomona.record.rows import Evaluation

Key = tuple[str, str]
"""(model, when) of an evaluation on the test split."""

MODELS = ("personal", "global", "local")
TIMES = ("trained", "received")
SPOKEN = {"trained": "after local training", "received": "as received"}


def views(result: Result) -> list[Key]:
    """Return every (model, when) with evaluations on the test split, the headline one first."""
    method_headline = tuple(result.about.get("headline") or ())
    present = {(e.model, e.when) for e in result.evaluations if e.split == "test" and e.clients}

    def order(key: Key) -> tuple[bool, int, int, Key]:
        model, when = key
        return (
            key != method_headline,
            MODELS.index(model) if model in MODELS else len(MODELS),
            TIMES.index(when) if when in TIMES else len(TIMES),
            key,
        )

    return sorted(present, key=order)


def headline(result: Result) -> Key | None:
    """Return the (model, when) of a run's headline model: the method's, else its personal model,
    else the global one.

    A trained model precedes the same model as received. None if nothing was evaluated on the test
    split.
    """
    return next(iter(views(result)), None)


def finished(result: Result) -> bool:
    """Return whether the run was completed."""
    return bool(result.summary)


def judged_by(result: Result) -> Evaluation | None:
    """Return the headline evaluation for comparing runs; None if there is none.

    With ``keep = best`` this is the best validation round, as for the predictions and closing
    metrics on record; otherwise the last round evaluated.
    """
    key = headline(result)
    test = result.curve(*key) if key else []
    if not key or not test or not _keeps_best(result):
        return test[-1] if test else None
    points = [e.point for e in result.curve(*key, "validation")]
    best_round = best(points, result.metric)
    return next((e for e in test if best_round and e.round == best_round.round), test[-1])


def _keeps_best(result: Result) -> bool:
    return result.config.get("keep") == "best" and finished(result)


@dataclass(frozen=True)
class Judged:
    """The models that runs of one method are judged by.

    Attributes:
        model, when: of the evaluation.
        rounds: the rounds after which they are evaluated, ascending; several for several seeds.
        best: whether these are the rounds best on validation, not the last ones.
    """

    model: str
    when: str
    rounds: tuple[int, ...]
    best: bool

    @classmethod
    def of(cls, runs: Sequence[Result]) -> Self | None:
        """Return what runs of several seeds are judged by; None if one was not evaluated."""
        evaluations = [judged_by(run) for run in runs]
        defined = [evaluation for evaluation in evaluations if evaluation]
        if not defined or len(defined) < len(evaluations):
            return None
        rounds = tuple(sorted({evaluation.round for evaluation in defined}))
        best_of_all = all(map(_keeps_best, runs))
        return cls(defined[0].model, defined[0].when, rounds, best_of_all)

    @property
    def moment(self) -> str:
        """The rounds, ``round 12, the best on validation``."""
        numbers = ", ".join(map(str, self.rounds))
        which = "best on validation" if self.best else "last"
        return f"round{'s' * (len(self.rounds) > 1)} {numbers}, the {which}"

    def __str__(self) -> str:
        return f"{self.model} model, {SPOKEN.get(self.when, self.when)}, {self.moment}"
