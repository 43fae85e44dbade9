"""The headline evaluation of a run: its headline model in one round, on test samples."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from pomona.metrics.best_round import best
from pomona.record.result import HeadlineScore, Result
from pomona.record.rows import Evaluation

Key = tuple[str, str]
"""(model, stage) of an evaluation on the test split."""

MODELS = ("personal", "global", "local")
STAGES = ("trained", "received")
STAGE_NAMES = {"trained": "after local training", "received": "as received"}


def views(result: Result) -> list[Key]:
    """Return every (model, stage) with evaluations on the test split, the headline one first."""
    method_headline = tuple(result.about.get("headline") or ())
    present = {(e.model, e.when) for e in result.evaluations if e.split == "test" and e.clients}

    def order(key: Key) -> tuple[bool, int, int, Key]:
        model, stage = key
        return (
            key != method_headline,
            MODELS.index(model) if model in MODELS else len(MODELS),
            STAGES.index(stage) if stage in STAGES else len(STAGES),
            key,
        )

    return sorted(present, key=order)


def headline(result: Result) -> Key | None:
    """Return the (model, stage) of a run's headline model: the method's, else its personal model,
    else the global one.

    A trained model precedes the same model as received. None if nothing was evaluated on the test
    split.
    """
    return next(iter(views(result)), None)


def finished(result: Result) -> bool:
    """Return whether the run was completed."""
    return bool(result.summary)


def headline_evaluation(result: Result) -> Evaluation | None:
    """Return the headline evaluation for comparing runs; None without one.

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


def headline_score(result: Result) -> HeadlineScore | None:
    """Return the number of a run's headline evaluation; None without one."""
    evaluation = headline_evaluation(result)
    if evaluation is None or evaluation.mean is None:
        return None
    model = f"{evaluation.model}, {evaluation.when}"
    return HeadlineScore(
        evaluation.mean, evaluation.metric, model, evaluation.split, evaluation.round
    )


def _keeps_best(result: Result) -> bool:
    return result.config.get("keep") == "best" and finished(result)


@dataclass(frozen=True)
class HeadlineModel:
    """The headline model of runs of one method, one run per seed.

    Attributes:
        model, stage: of the evaluation.
        rounds: the rounds after which they are evaluated, ascending; several for several seeds.
        best: whether these are the rounds best on validation, not the last ones.
    """

    model: str
    stage: str
    rounds: tuple[int, ...]
    best: bool

    @classmethod
    def of_runs(cls, runs: Sequence[Result]) -> Self | None:
        """Return the headline model of the runs; None if one run was not evaluated."""
        evaluations = [headline_evaluation(run) for run in runs]
        defined = [evaluation for evaluation in evaluations if evaluation]
        if not defined or len(defined) < len(evaluations):
            return None
        rounds = tuple(sorted({evaluation.round for evaluation in defined}))
        best_of_all = all(map(_keeps_best, runs))
        return cls(defined[0].model, defined[0].when, rounds, best_of_all)

    @property
    def chosen_rounds(self) -> str:
        """The rounds, ``round 12, the best on validation``."""
        numbers = ", ".join(map(str, self.rounds))
        criterion = "best on validation" if self.best else "last"
        return f"round{'s' * (len(self.rounds) > 1)} {numbers}, the {criterion}"

    def __str__(self) -> str:
        return (
            f"{self.model} model, {STAGE_NAMES.get(self.stage, self.stage)}, {self.chosen_rounds}"
        )
