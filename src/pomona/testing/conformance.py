"""Conformance checks of a method's rounds, runs and card."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from torch import Tensor

from pomona.config import Config, resolve
from pomona.core.errors import ConfigError
from pomona.core.training_settings import Passes
from pomona.federation.exchange import received_bytes
from pomona.methods.base import Method, MethodSettings
from pomona.methods.card import MODELS, is_model
from pomona.objective.training import TRAINING
from pomona.simulation import run as simulated
from pomona.testing.problems import Federation, equal, passes, quadratics, states, suited, trained
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
    return [Check(check.__name__, settings, check) for check in CHECKS]


def small(method: Mapping[str, Any], **overrides: object) -> Config:
    """Return a run of a few rounds of a method on scikit-learn's digits; ``overrides``: other
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
    return resolve(base, overrides)


def clients_of_one_class_and_partial_participation_work(settings: MethodSettings) -> None:
    """Check ten clients of one class each, half of them per round."""
    one_class = {"name": "classes", "classes_per_client": 1}
    overrides = {"partition": one_class, "clients": 10, "participation": 0.5, "rounds": 2}
    result = simulated(small(settings.model_dump(mode="json"), **overrides))
    curve = result.curve(*settings.method().card.headline)
    assert curve[-1].mean is not None
    assert _are_finite(chain.from_iterable(r.loss for r in result.rounds))


def _are_finite(values: Iterable[float | None]) -> bool:
    """Return whether there are values everywhere, and all are finite."""
    return bool(np.isfinite(np.array([*values], float)).all())


def who_joins_later_and_who_never_trained_take_part(settings: MethodSettings) -> None:
    """Check that a client that joins in the second round trains in it, and that one that is never
    trained with gets a model afterwards. A method that shares samples of all clients takes neither.
    """
    membership = {"joins": {"3": 2}, "unseen": [1], "adapt_rounds": 1}
    overrides = {"partition": "iid", "rounds": 2, "membership": membership}
    if settings.method().share:
        return
    result = simulated(small(settings.model_dump(mode="json"), **overrides))
    assert [r.cohort for r in result.rounds] == [(0, 2), (0, 2, 3)]
    assert all(e.clients == (1,) for e in result.unseen)
    assert _are_finite([*result.rounds[1].loss, *(e.mean for e in result.unseen)])
    assert settings.method().card.headline in {(e.model, e.when) for e in result.unseen}


def the_card_says_how_many_gradients_a_round_takes(settings: MethodSettings) -> None:
    """Check that the card's number of gradients matches the count, for each random stream and two
    batches per epoch.

    Evaluations, and passes in only one round, may take fewer: the card gives the maximum.
    """
    for length in (Passes(3), Passes(steps=5)):
        _require_gradients(settings, length)


def _require_gradients(settings: MethodSettings, length: Passes) -> None:
    method = settings.method()
    counts: Counter[str] = Counter()

    problem = suited(settings, quadratics(1, samples=10))
    plain = problem.gradient

    def counting(
        W: Tensor, indices: list[Tensor], *args: Any, **options: Any
    ) -> tuple[Tensor, Tensor]:
        views = options["views"] if "views" in options else args[2]
        counts[views[0].purpose] += 1
        return plain(W, indices, *args, **options)

    problem.gradient = counting  # type: ignore[method-assign]
    run = Federation(method, problem)
    for number in (1, 2):  # some begin in the second
        counts.clear()
        run.round(passes(settings, number, batch_size=5, epochs=length.epochs, steps=length.steps))
    declared, loose = _declared_gradients(method, length, batches=2)
    for stream in declared | counts:
        purpose = "" if stream == TRAINING else f", purpose={stream!r}"
        message = (
            f"{length}, {stream}: {counts[stream]} gradients, the card has {declared[stream]}; "
            f"declare what a batch takes in privacy.gradients, such as "
            f"base.Gradients(per_batch=2{purpose})"
        )
        assert counts[stream] <= declared[stream], message
        assert stream in loose or counts[stream] == declared[stream], message


def _declared_gradients(
    method: Method, length: Passes, batches: int
) -> tuple[Counter[str], set[str]]:
    """Return the card's number of gradients by random stream, and the streams that may take
    fewer.
    """
    declared, loose = Counter[str](), set[str]()
    for entry in method.card.privacy.gradients:
        stream = entry.purpose.partition(" ")[0]
        declared[stream] += entry.per_batch * entry.batches(length, batches)
        if entry.once or entry.evaluates:
            loose.add(stream)
    return declared, loose


def the_card_says_whether_a_round_depends_on_how_many_there_will_be(
    settings: MethodSettings,
) -> None:
    """Check that a method whose rounds do not depend on their total gives the same result with
    rounds added later.
    """
    runs = (trained(settings, quadratics(3, samples=4), 3, total=total) for total in (10, 50))
    declared = settings.method().card.needs.total_rounds
    assert equal(*map(states, runs)) is not declared, (
        f"three rounds of 10 and of 50 in all end {'alike' if declared else 'differently'}, the "
        f"card's needs have total_rounds={declared}"
    )


def the_card_says_what_an_uplink_tells_beside_models(settings: MethodSettings) -> None:
    """Check that the card describes each entry of an uplink that is not a model or part of one, for
    consent.
    """
    method = settings.method()
    run = trained(settings, quadratics(3, samples=4), 0)
    declared, names = set(method.card.exchange.reveals), set(method.server.uplink_form(run.server))
    run.round(passes(settings))
    extra = names.union(*(reply.uplink for reply in run.replies)) - MODELS
    assert declared == extra, (
        f"an uplink has {sorted(extra)} besides models, the card declares {sorted(declared)}"
    )


def the_card_says_how_many_models_a_client_receives(settings: MethodSettings) -> None:
    """Check that the card's number is the maximum of models, rounded up, that a client receives in
    three full rounds.

    A card may have none if a part of a model is sent.
    """
    # no other entry is as long as a row of 9; PGFed sends 3, and not N - 1
    card, largest = settings.method().card, 0
    run = trained(settings, quadratics(5, samples=4, d=9), 0)
    for number in (1, 2, 3):
        downlink = run.downlink(passes(settings, number))
        models = {
            name: rows
            for name, rows in downlink.items()
            if rows.bank.shape[1] == run.problem.size or is_model(name)
        }
        largest = max(
            largest, *(-(-size // run.initial().nbytes) for size in received_bytes(models, run.ids))
        )
        run.round(passes(settings, number))
    if card.exchange.down_models or card.exchange.down.isdigit():
        declared = (
            card.exchange.down_models(len(run.ids))
            if card.exchange.down_models
            else int(card.exchange.down)
        )
        assert largest == declared, (
            f"{largest} models were received in a round, the card has {declared}"
        )


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
