"""A round's plan: cohort, scheduled learning rate, what is evaluated, which models are kept."""

from dataclasses import dataclass
from math import cos, pi

from pomona.config import Config
from pomona.core.rng import stream
from pomona.core.round import Ids, Roster, Round


@dataclass(frozen=True)
class RoundPlan:
    """One round.

    Attributes:
        number: from 1.
        round: its settings.
        roster: the members.
        cohort: the clients that train; ids ascending.
        watched: the stages to evaluate: "received", "trained".
        keep_models: whether clients keep their models, for the record.
    """

    number: int
    round: Round
    roster: Roster
    cohort: Ids
    watched: frozenset[str]
    keep_models: bool

    @property
    def idle(self) -> tuple[int, ...]:
        """The members that do not train."""
        trained = set(self.cohort)
        return tuple(i for i in self.roster.members if i not in trained)


def plan_of(
    config: Config,
    number: int,
    roster: Roster,
    quarantined: frozenset[int],
    has_leavers: bool,
    stoppable: bool = False,
) -> RoundPlan:
    """Return the plan of round ``number``.

    Args:
        config: the run's settings.
        number: from 1.
        roster: the members.
        quarantined: clients that are not asked.
        has_leavers: whether the round is a client's last.
        stoppable: whether a callback may end the run after any round.
    """
    cohort = select(config, tuple(i for i in roster.members if i not in quarantined), number)
    partial, may_stop = len(cohort) < len(roster.members), config.stop is not None
    received = is_evaluated(config, number - 1)
    # Before a client is drawn again, or leaves, its trained model must be evaluated.
    trained = any((is_evaluated(config, number), partial, stoppable, may_stop and received))
    stages = {"received": received, "trained": trained}
    watched = frozenset(stage for stage, enabled in stages.items() if enabled)
    needs_models = may_stop or stoppable or config.keep != "last"
    keep_models = any((number == config.rounds, partial, has_leavers, needs_models))
    return RoundPlan(number, round_of(config, number), roster, cohort, watched, keep_models)


def select(config: Config, members: Ids, number: int) -> Ids:
    """Draw a round's cohort: uniform from the members without replacement, minus absent ones; ids
    ascending.
    """
    size = cohort_size(config, len(members))
    if size < len(members):
        draw = stream(config.seed, "selection", number).choice(len(members), size, replace=False)
        members = tuple(members[i] for i in sorted(draw.tolist()))
    return present(config, members, number) if config.absence and members else members


def cohort_size(config: Config, members: int) -> int:
    """Return how many of these members a cohort is drawn to have."""
    return max(1, round(config.participation * members))


def present(config: Config, ids: Ids, number: int) -> Ids:
    """Return the clients that do not skip a round; if all would, the one with the highest draw
    stays.
    """
    draws = {i: stream(config.seed, "absence", number, i).random() for i in ids}
    return tuple(i for i in ids if draws[i] >= config.absence) or (max(ids, key=draws.__getitem__),)


def is_evaluated(config: Config, number: int) -> bool:
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
