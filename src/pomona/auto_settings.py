"""``engine = "auto"`` and ``lr = "auto"``: settled once, before a run's first round, or taken from
its record.
"""

from dataclasses import replace
from pathlib import Path

from torch import Tensor

from pomona.config import Config
from pomona.core.errors import ConfigError
from pomona.federation.callbacks import RunNotes
from pomona.federation.round_plan import round_of
from pomona.lifecycle import recorded_setting
from pomona.methods.base import optimizer_state, optimizer_step
from pomona.objective.engine import load_engine
from pomona.objective.learning_rate_range_test import ADAPTIVE_RATES, RATES, StepRule, range_test
from pomona.scenario import Scenario


def with_engine(
    scenario: Scenario, notes: RunNotes, resumed_folder: Path | None = None
) -> Scenario:
    """Return the scenario with its engine: that of the resumed run, else native if it can.

    Args:
        scenario: any.
        notes: get one line with the engine and the reason for it.
        resumed_folder: folder of the run to resume, if any.

    Raises CheckpointError if all checkpoints of that run are damaged.
    """
    if scenario.config.engine != "auto":
        return scenario
    engine = recorded_setting(resumed_folder, "engine") if resumed_folder else None
    if engine is not None:
        notes.pass_on(f"engine = {engine}, as {resumed_folder} was begun with")
        return scenario.with_settings(engine=engine)
    if reason := scenario.why_torch():
        notes.add(f"engine = torch: {reason}")
        return scenario.with_settings(engine="torch")
    engine = load_engine(scenario.engine)
    notes.add(f"engine = {scenario.engine}: {engine.package} {engine.release}")
    return scenario.with_settings(engine=scenario.engine)


def require_engine(scenario: Scenario, folder: Path) -> None:
    """Raise ConfigError if a folder's run, to be resumed, used an engine that this machine does not
    have.
    """
    engine = scenario.config.engine
    if scenario.config.engine_named and (reason := scenario.why_torch()):
        raise ConfigError(
            f"{folder} was started with engine = {engine}, which is not available here: {reason}; "
            "continue where it is available, or give another --out"
        )


def with_learning_rate(
    scenario: Scenario, notes: RunNotes, resumed_folder: Path | None = None
) -> Scenario:
    """Return the scenario with its learning rate: from the resumed run, else found by the range
    test.

    Args:
        scenario: any.
        notes: get the rate and its origin.
        resumed_folder: folder of the run to resume, if any.

    Raises:
        CheckpointError: all checkpoints of that run are damaged.
        ConfigError: with privacy, since trial training is not allowed.
    """
    config = scenario.config
    if config.lr != "auto":
        return scenario
    if config.privacy:
        raise ConfigError(
            "lr = 'auto' looks at training losses, which privacy does not cover; set lr, e.g. "
            "lr=0.1"
        )
    lr = recorded_setting(resumed_folder, "lr") if resumed_folder else None
    if lr is not None:
        notes.pass_on(f"lr = {lr:g}, as {resumed_folder} was begun with")
        return scenario.with_settings(lr=lr)
    rows, founders = scenario.partition.clients, set(scenario.founders)
    sizes = [len(c.train) if i in founders else 0 for i, c in enumerate(rows)]
    rates = RATES if config.optimizer.name == "sgd" else ADAPTIVE_RATES
    notes.pass_on("lr = auto: trying learning rates")
    test = range_test(scenario.objective(), scenario.initial(), sizes, steps_of(config), rates)
    notes.add(str(test))
    return scenario.with_settings(lr=test.chosen)


def steps_of(config: Config) -> StepRule:
    """Return the local steps of a run, at any rate."""
    round_ = round_of(config.model_copy(update={"lr": 1.0}), 1)

    def step(w: Tensor, g: Tensor, moments: Tensor, lr: float) -> None:
        optimizer_step(w, g, moments, replace(round_, lr=lr))

    return StepRule(config.batch_size, lambda w: optimizer_state(w, round_), step, config.seed)
