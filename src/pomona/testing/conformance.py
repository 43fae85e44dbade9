"""Conformance checks of a method's rounds, runs and card."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from pomona.config import Config, resolve
from pomona.core.errors import ConfigError
from pomona.core.training_settings import Passes
from pomona.federation.exchange import received_bytes
from pomona.methods.base import MODELS, MethodSettings, is_model
from pomona.objective.training import TRAINING
from pomona.simulation import run as simulated
from pomona.testing.problems import Federation, passes, quadratics, same, states, suited
from pomona.testing.round_checks import ROUND_CHECKS
from pomona.testing.task_checks import TASK_CHECKS


@dataclass(frozen=True)
class Check:
    """One property of a method; calling it raises AssertionError, or the method's own exception, on
    failure.
    """

    name: str
    settings: MethodSettings
    holds: Callable[[MethodSettings], None]

    def __call__(self) -> None:
        """Run the check, which takes at most some seconds."""
        try:
            self.holds(self.settings)
        except ConfigError as refusal:
            if not self.settings.method().card.tasks:
                refusal.add_note(
                    "The checks take quadratics, without features or classes, unless the card has "
                    'tasks, such as ("classes",).'
                )
            raise

    def __str__(self) -> str:
        return self.name


def conformance(settings: MethodSettings) -> list[Check]:
    """Return the checks that every method must pass, for a method with these settings.

    They need no files and take seconds. Call this for each combination of settings that changes the
    method's behaviour.
    """
    return [Check(holds.__name__, settings, holds) for holds in CHECKS]


def small(method: Mapping[str, Any], **over: object) -> Config:
    """Return a run of a few rounds of a method on scikit-learn's digits; ``over``: other
    settings.
    """
    base = {
        "method": method,
        "data": {"name": "digits", "train_limit": 240, "test_limit": 120},
        "partition": {"name": "dirichlet", "beta": 1.0, "min_size": 8},
        "model": {"name": "mlp", "hidden": [8]},
        "clients": 4,
        "rounds": 3,
        "batch_size": 16,
        "lr": 0.1,
        "workers": 1,
        "engine": "torch",
    }
    return resolve(base, over)


def clients_of_one_class_and_partial_participation_work(settings: MethodSettings) -> None:
    """Check ten clients of one class each, half of them per round."""
    one_class = {"name": "classes", "classes_per_client": 1}
    over = {"partition": one_class, "clients": 10, "participation": 0.5, "rounds": 2}
    result = simulated(small(settings.model_dump(mode="json"), **over))
    judged = result.curve(*settings.method().card.headline)
    assert judged[-1].mean is not None
    assert all(loss is not None and np.isfinite(loss) for r in result.rounds for loss in r.loss)


def who_joins_later_and_who_never_trained_take_part(settings: MethodSettings) -> None:
    """Check that a client that joins in the second round trains in it, and that one that is never
    trained with gets a model afterwards. A method that shares samples of all clients takes neither.
    """
    membership = {"joins": {"3": 2}, "unseen": [1], "adapt_rounds": 1}
    over = {"partition": "iid", "rounds": 2, "membership": membership}
    if settings.method().share:
        return
    result = simulated(small(settings.model_dump(mode="json"), **over))
    assert [r.cohort for r in result.rounds] == [(0, 2), (0, 2, 3)]
    assert all(loss is not None and np.isfinite(loss) for loss in result.rounds[1].loss)
    assert all(e.clients == (1,) for e in result.unseen)
    assert all(e.mean is not None and np.isfinite(e.mean) for e in result.unseen)
    assert settings.method().card.headline in {(e.model, e.when) for e in result.unseen}


def the_card_says_how_many_gradients_a_round_takes(settings: MethodSettings) -> None:
    """Check that the card's number of gradients matches the count, for each random stream and two
    batches per epoch.

    Evaluations, and passes in only one round, may take fewer: the card gives the maximum.
    """
    for length in (Passes(3), Passes(steps=5)):
        _require_gradients(settings, length)


def _require_gradients(settings: MethodSettings, length: Passes) -> None:
    method, batches = settings.method(), 2
    made: Counter[str] = Counter()

    problem = suited(settings, quadratics(1, samples=10))
    plain = problem.gradient

    def counted(W: Tensor, indices: list[Tensor], *args: Any, **more: Any) -> tuple[Tensor, Tensor]:
        views = more["views"] if "views" in more else args[2]
        made[views[0].purpose] += 1
        return plain(W, indices, *args, **more)

    problem.gradient = counted  # type: ignore[method-assign]
    run = Federation(method, problem)
    for number in (1, 2):  # some begin in the second
        made.clear()
        run.round(passes(settings, number, batch_size=5, epochs=length.epochs, steps=length.steps))
    said: Counter[str] = Counter()
    loose = set()
    for kind in method.card.privacy.gradients:
        stream = kind.purpose.partition(" ")[0]
        said[stream] += kind.per_batch * kind.batches(length, batches)
        if kind.once or kind.evaluates:
            loose.add(stream)
    for stream in said | made:
        where = "" if stream == TRAINING else f", purpose={stream!r}"
        what = (
            f"{length}, {stream}: {made[stream]} gradients, the card says {said[stream]}; declare "
            f"what a batch takes in privacy.gradients, such as base.Gradients(per_batch=2{where})"
        )
        assert made[stream] <= said[stream], what
        assert stream in loose or made[stream] == said[stream], what


def the_card_says_whether_a_round_depends_on_how_many_there_will_be(
    settings: MethodSettings,
) -> None:
    """Check that a method whose rounds do not depend on their total gives the same result with
    rounds added later.
    """
    held = []
    for total in (10, 50):
        run = Federation(settings.method(), suited(settings, quadratics(3, samples=4)))
        for number in (1, 2, 3):
            run.round(passes(settings, number, total=total))
        held.append(states(run))
    said = settings.method().card.needs.total_rounds
    assert same(*held) is not said, (
        f"three rounds of 10 and of 50 in all end {'alike' if said else 'differently'}, the card's "
        f"needs have total_rounds={said}"
    )


def the_card_says_what_an_uplink_tells_beside_models(settings: MethodSettings) -> None:
    """Check that the card describes each entry of an uplink that is not a model or part of one, for
    consent.
    """
    method = settings.method()
    run = Federation(method, suited(settings, quadratics(3, samples=4)))
    said, sent = set(method.card.exchange.reveals), set(method.server.uplink_form(run.server))
    run.round(passes(settings))
    beside = sent.union(*(reply.uplink for reply in run.replies)) - MODELS
    assert said == beside, (
        f"an uplink has {sorted(beside)} beside models, the card tells of {sorted(said)}"
    )


def the_card_says_how_many_models_a_client_receives(settings: MethodSettings) -> None:
    """Check that the card's number is the maximum of models, rounded up, that a client receives in
    three full rounds.

    A card may have none if a part of a model is sent.
    """
    # no other entry is as long as a row of 9; PGFed sends 3, and not N - 1
    card, most = settings.method().card, 0
    run = Federation(settings.method(), suited(settings, quadratics(5, samples=4, d=9)))
    for number in (1, 2, 3):
        down = run.method.server.downlink(run.server, run.ids, run.roster, passes(settings, number))
        models = {
            name: rows
            for name, rows in down.items()
            if rows.bank.shape[1] == run.problem.size or is_model(name)
        }
        most = max(
            most, *(-(-size // run.initial().nbytes) for size in received_bytes(models, run.ids))
        )
        run.round(passes(settings, number))
    if card.exchange.down_models or card.exchange.down.isdigit():
        said = (
            card.exchange.down_models(len(run.ids))
            if card.exchange.down_models
            else int(card.exchange.down)
        )
        assert most == said, f"{most} models were received in a round, the card says {said}"


CHECKS: tuple[Callable[[MethodSettings], None], ...] = (
    *ROUND_CHECKS,
    *TASK_CHECKS,
    clients_of_one_class_and_partial_participation_work,
    who_joins_later_and_who_never_trained_take_part,
    the_card_says_how_many_gradients_a_round_takes,
    the_card_says_whether_a_round_depends_on_how_many_there_will_be,
    the_card_says_what_an_uplink_tells_beside_models,
    the_card_says_how_many_models_a_client_receives,
)
