"""Rounds: planned from the settings (rates, cohort, what is evaluated, which models are kept), and
evaluated: the last scores of each client, and the validation curve, for early stopping.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import cos, pi
from typing import Any

from pomona.config import Config
from pomona.core.rng import stream
from pomona.core.round import Roster, Round
from pomona.core.training_settings import Stop
from pomona.federation.exchange import Reply
from pomona.metrics.best_round import Best, Point, best
from pomona.metrics.metric import Metric, Score
from pomona.metrics.nan_safe import mean_of_known
from pomona.record.rows import Evaluation


@dataclass(frozen=True)
class RoundPlan:
    """One round.

    Attributes:
        number: from 1.
        round: its settings.
        roster: the members.
        cohort: the clients that train; ids ascending.
        watched: the moments to evaluate: "received", "trained".
        keep: whether clients keep their models, for the record.
    """

    number: int
    round: Round
    roster: Roster
    cohort: tuple[int, ...]
    watched: frozenset[str]
    keep: bool

    @property
    def others(self) -> tuple[int, ...]:
        """The members that do not train."""
        return tuple(i for i in self.roster.members if i not in self.cohort)


def plan_of(
    config: Config, number: int, roster: Roster, quarantined: frozenset[int], parting: bool
) -> RoundPlan:
    """Return the plan of round ``number``.

    Args:
        config: the run's settings.
        number: from 1.
        roster: the members.
        quarantined: clients that are not asked.
        parting: whether the round is a client's last.
    """
    cohort = select(config, tuple(i for i in roster.members if i not in quarantined), number)
    partial, may_stop = len(cohort) < len(roster.members), config.stop is not None
    received = due(config, number - 1)
    # Before a client is drawn again, or leaves, its trained model must be evaluated.
    trained = due(config, number) or partial or (may_stop and received)
    watched = {
        moment for moment, wanted in (("received", received), ("trained", trained)) if wanted
    }
    keep = number == config.rounds or partial or parting or may_stop or config.keep != "last"
    return RoundPlan(number, round_of(config, number), roster, cohort, frozenset(watched), keep)


def select(config: Config, members: tuple[int, ...], number: int) -> tuple[int, ...]:
    """Draw a round's cohort: uniform from the members without replacement, minus absent ones; ids
    ascending.
    """
    size = max(1, round(config.participation * len(members)))
    if size < len(members):
        draw = stream(config.seed, "selection", number).choice(len(members), size, replace=False)
        members = tuple(members[i] for i in sorted(draw.tolist()))
    return present(config, members, number) if config.absence and members else members


def present(config: Config, ids: tuple[int, ...], number: int) -> tuple[int, ...]:
    """Return the clients that do not skip a round; if all would, the one with the highest draw
    stays.
    """
    draws = {i: stream(config.seed, "absence", number, i).random() for i in ids}
    return tuple(i for i in ids if draws[i] >= config.absence) or (max(ids, key=draws.__getitem__),)


def due(config: Config, number: int) -> bool:
    """Return whether round ``number`` is evaluated; 0 is the initial model."""
    return number % config.eval_every == 0 or number == config.rounds


def round_of(config: Config, number: int) -> Round:
    """Return the settings of round ``number`` (1 to rounds; rounds + 1 is the closing visit)."""
    decay = config.lr_decay ** (number - 1) * scheduled(config, number)
    return Round(
        number=number,
        total=config.rounds,
        lr=config.rate * decay,
        base_lr=config.rate,
        decay=decay,
        epochs=config.local_epochs,
        steps=config.local_steps,
        batch_size=config.batch_size,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        seed=config.seed,
        optimizer=config.optimizer,
    )


def scheduled(config: Config, number: int) -> float:
    """Return the factor of warm-up and ``lr_schedule`` for round ``number``; constant after the
    last round.
    """
    number, warmup = min(number, config.rounds), config.lr_warmup_rounds
    if number <= warmup:
        return number / (warmup + 1)
    match config.lr_schedule:
        case "cosine":
            return (1 + cos(pi * (number - 1 - warmup) / (config.rounds - warmup))) / 2
        case "steps":
            return config.lr_factor ** sum(number > milestone for milestone in config.lr_milestones)
        case "constant":
            return 1.0


@dataclass
class ValidationCurve:
    """Means over clients on validation, by round, for early stopping.

    ``headline``: (model, when) of the method's headline model.
    """

    headline: tuple[str, str]
    metric: Metric
    stop: Stop | None
    _points: list[Point] = field(default_factory=list)

    def note(self, evaluation: Evaluation) -> None:
        """Add an evaluation, if it is one of that model on validation."""
        if evaluation.key == (*self.headline, "validation"):
            means = mean_of_known(evaluation.value), mean_of_known(evaluation.loss)
            self._points.append(Point(evaluation.round, *means))

    def restore(self, events: Iterable[tuple[str, Any]]) -> None:
        """Add the evaluations among the events of a record."""
        for kind, body in events:
            if kind == "evaluation":
                self.note(body)

    @property
    def best(self) -> Best | None:
        """The best round so far, as defined by ``stop``."""
        return best(self._points, self.metric, self.stop.min_gain if self.stop else 0.0)

    @property
    def best_round(self) -> int:
        """The best round so far, however small its gain; -1 if there is none."""
        found = best(self._points, self.metric)
        return found.round if found else -1

    @property
    def spent(self) -> bool:
        """Return whether early stopping's patience is exhausted."""
        found = self.best
        return self.stop is not None and found is not None and found.since >= self.stop.patience


@dataclass
class Scoreboard:
    """The last scores of each client, by (model, when, split); ``metric``: of the values."""

    metric: Metric
    _known: dict[tuple[str, str, str], dict[int, Score]] = field(default_factory=dict)

    def note(self, asked: Collection[int], replies: Sequence[Reply]) -> None:
        """Add the scores in replies; a score of a received model counts only while that model is
        current.
        """
        absent = set(asked) - {r.client for r in replies}
        for (_, when, _), per_client in self._known.items():
            if when == "received":
                for client in absent & per_client.keys():
                    del per_client[client]
        for reply in replies:
            for score in reply.scores:
                self._known.setdefault(score.key, {})[reply.client] = score

    def evaluations(self, number: int, when: str, members: Sequence[int]) -> list[Evaluation]:
        """Return the known evaluations after round ``number`` of each named model, received or
        trained.

        For an absent client, the trained model is its last one; a client that never took part has
        none yet, and former members do not count.
        """
        found = []
        for (_, moment, _), per_client in self._known.items():
            scores = {i: per_client[i] for i in members if i in per_client}
            if moment == when and any(score.samples for score in scores.values()):
                found.append(Evaluation.of(number, scores, self.metric))
        return found

    def unseen(self, number: int, reply: Reply) -> list[Evaluation]:
        """Return the evaluations of a client that did not train, without intervals and without
        storing them.
        """
        measured = (replace(score, interval=None) for score in reply.scores if score.samples)
        return [Evaluation.of(number, {reply.client: score}, self.metric) for score in measured]

    def as_json(self) -> list[list[Any]]:
        """Return the scores as JSON for a checkpoint."""
        return [
            [*key, client, s.samples, s.loss, s.accuracy, s.value, s.interval]
            for key, own in self._known.items()
            for client, s in own.items()
        ]

    def restore(self, body: Iterable[Sequence[Any]]) -> None:
        """Restore the result of ``as_json``."""
        for model, when, split, client, *values in body:
            self._known.setdefault((model, when, split), {})[client] = Score(
                model, when, split, *values
            )
