"""Checks of a method's runs on what hospitals train: a part of a network, masks, times to an event, AdamW."""

from collections.abc import Callable
from math import isfinite

import numpy as np

from pomona.core.errors import ConfigError
from pomona.methods.base import MethodSettings
from pomona.record.result import Result
from pomona.scenario import Scenario
from pomona.simulation import run, simulate
from pomona.testing.problems import same
from pomona.testing.small_federations import ADAMW, PARTLY_FROZEN, SEGMENTATION, SURVIVAL, SmallFederation


def trains(federation: SmallFederation, settings: MethodSettings) -> None:
    """Assert that a run trains what is not frozen, and nothing else, is judged by its task, and repeats itself."""
    config = federation.config(settings)
    scenario = Scenario.prepare(config)
    before = {name: tensor.clone() for name, tensor in scenario.frozen.items()}
    result = simulate(scenario)
    _trained_alone(federation, scenario, result)
    assert same(scenario.frozen, before)
    _learnt(federation, settings, result)
    other = run(config.model_copy(update={"workers": 2}))
    assert outcome(other) == outcome(result)
    assert all(same(other.models[i], model) for i, model in result.models.items())


def outcome(result: Result) -> object:
    """All that a run's record says of its numbers."""
    info = [{k: v.tolist() for k, v in r.info.items()} for r in result.rounds]
    return [(r.loss, r.bytes_down, r.bytes_up) for r in result.rounds], info, result.evaluations, result.final


def _trained_alone(federation: SmallFederation, scenario: Scenario, result: Result) -> None:
    """Rows and personal models have the trained tensors, and none of the frozen ones."""
    assert scenario.frozen.keys() == federation.frozen
    trained = {k: p.shape for k, p in scenario.module().named_parameters() if k not in federation.frozen}
    assert len(scenario.initial()) == sum(shape.numel() for shape in trained.values())
    for client in range(scenario.config.clients):
        assert {k: tensor.shape for k, tensor in result.models[client].items()} == trained


def _learnt(federation: SmallFederation, settings: MethodSettings, result: Result) -> None:
    """Losses are numbers, the judged models' falls, and each model has its task's figures."""
    everybody = tuple(range(len(result.about["clients"])))
    assert all(r.cohort == everybody and not r.refused for r in result.rounds)
    assert all(loss is not None and isfinite(loss) for r in result.rounds for loss in r.loss)
    judged = result.curve(*settings.method().card.headline)
    losses = [np.mean(np.array(seen.loss, dtype=float)) for seen in judged]
    assert losses[-1] < losses[0], f"the loss of the judged models does not fall: {losses}"
    assert all(seen.metric == federation.metric for seen in judged)
    values = [value for seen in judged for value in seen.value if value is not None]
    assert values
    assert all(0 <= value <= 1 for value in values)
    for figures in result.final:
        assert federation.figures | {federation.metric} <= figures.keys()


def a_run_trains_a_partly_frozen_network(settings: MethodSettings) -> None:
    """Classes: the last two layers of three are in rows and models; the first stays what it was, to the bit."""
    trains(PARTLY_FROZEN, settings)


def a_run_trains_segmentation(settings: MethodSettings) -> None:
    """Masks of images, by a small U-Net."""
    trains(SEGMENTATION, settings)


def a_run_trains_survival(settings: MethodSettings) -> None:
    """Times to an event, some of them censored."""
    trains(SURVIVAL, settings)


def a_run_trains_with_adamw_or_refuses_it(settings: MethodSettings) -> None:
    """As the card says: with AdamW if the rule is for any steps, else one line before anything is trained."""
    if settings.method().card.steps == "any":
        trains(ADAMW, settings)
    else:
        _refused(ADAMW, settings)


def _refused(federation: SmallFederation, settings: MethodSettings) -> None:
    """Assert that a run is refused for its optimizer, in one line."""
    try:
        run(federation.config(settings))
    except ConfigError as refusal:
        said = str(refusal)
    else:
        raise AssertionError(f"the card says that the rule holds for {settings.method().card.steps} steps, but it ran")
    assert said.startswith("optimizer.name"), said
    assert "\n" not in said


TASK_CHECKS: tuple[Callable[[MethodSettings], None], ...] = (
    a_run_trains_a_partly_frozen_network,
    a_run_trains_segmentation,
    a_run_trains_survival,
    a_run_trains_with_adamw_or_refuses_it,
)
