"""The agreed run: section run of a study, completed from the federation's settings."""

from typing import Any

from pomona.config import Config, fitted, resolve
from pomona.core.errors import ConfigError, refuse
from pomona.core.toml import expand_names
from pomona.core.training_settings import require_steps
from pomona.federation.secure_sum import require_sums
from pomona.models.weights import initial
from pomona.scenario.checks import require_task
from pomona.tasks import TASKS
from pomona.tasks.scores import require
from pomona_federation import cross_evaluation
from pomona_federation.study import EvaluationStudy, RunStudy, SearchStudy, TrainingStudy
from pomona_federation.task_settings import TaskSettings

# Keys of a run that every silo sets for itself, or that are set elsewhere in the federation's file.
ELSEWHERE = {
    "data": "each silo names its own in silo.toml",
    "partition": "the silos are the partition",
    "clients": "set places",
    "membership": "silos are added and revoked by `pomona server`",
    "attack": "attacks are for simulations only; test with `pomona run`",
    "workers": "every silo is one process",
    "cluster": "every silo computes on its own machine alone",
    "state_memory": "every silo keeps its state in its own folder",
    "device": "each silo sets its own in silo.toml",
    "rows_per_call": "every silo is one row",
    "checkpoint_every": "every round is committed",
    "track": "it is for simulations; the server has metrics for Prometheus",
}


def resolved(
    study: RunStudy, task: TaskSettings, n_places: int, share: float, insecure: bool
) -> Config:
    """The run of a study, with one client per place.

    Raises ConfigError for keys that do not belong in section run.

    Args:
        study: its section run is completed.
        task: the agreed task settings.
        n_places: number of places in the federation.
        share: largest share of one silo in a mean, unless section run sets it.
        insecure: the federation has no keys, so nobody's data is protected.
    """
    misplaced = sorted(set(study.run) & set(ELSEWHERE))
    if misplaced:
        key = misplaced[0]
        raise ConfigError(f"run.{key} is not a key of a federation: {ELSEWHERE[key]}")
    try:
        fixed: dict[str, Any] = {"clients": n_places, "workers": 1, "checkpoint_every": 1}
        if isinstance(study, EvaluationStudy):
            fixed |= cross_evaluation.run(tuple(sorted(study.evaluate.models.values())))
        # torch unless the study names another: what a silo has installed decides no number
        config = fitted(
            resolve({"largest_share": share, "engine": "torch"}, expand_names(study.run), fixed)
        )
        target_task = TASKS[task.targets]
        # No party sees all labels, so the default metric follows from the targets alone.
        metric = require(config.metric or target_task.usual, target_task)
        config = config.model_copy(update={"metric": metric.name})
        steps = config.method.method().card.needs.steps
        require_steps(config.method.name, steps, config.momentum, config.optimizer)
        require_task(config, task.targets)
        if weights := initial(config.model):
            pinned = config.model.model_copy(update={"init_sha256": weights.sha256})
            config = config.model_copy(update={"model": pinned})
    except ConfigError as fault:
        raise ConfigError(f"section run: {fault}") from None
    _require_possible(config, study, insecure)
    return config


def _require_possible(config: Config, study: RunStudy, insecure: bool) -> None:
    """Raise ConfigError for settings that a simulation supports and a federation does not."""
    privacy, method = config.privacy, config.method.method()
    require_sums(config)
    sends_losses = any(r.name == "training-loss" for r in method.card.privacy.releases)
    faults = (
        (
            method.share,
            f"run.method = {config.method.name!r} sends samples to every client; silos keep "
            "theirs: choose another",
        ),
        (
            config.stop and not study.shares("validation", 0),
            "run.stop.patience looks at the silos' scores on validation samples; set "
            "share_scores = true",
        ),
        (
            sends_losses and isinstance(study, TrainingStudy) and not study.share_scores,
            f"run.method = {config.method.name!r} sends training losses, or choices by them, which "
            "share_scores = false keeps at the silos: choose another, or set share_scores = true",
        ),
        (
            privacy and isinstance(study, SearchStudy),
            "section run.privacy: each trial of a search would cost more epsilon; search without "
            "it, on data that need no protection, or not at all",
        ),
        (
            privacy and privacy.seed is not None and not insecure,
            "run.privacy.seed: anyone who knows it can remove the noise; leave it out "
            "(tests set insecure = true with it)",
        ),
        (
            config.keep == "best",
            "run.keep = 'best' is for simulations; in a federation, silos keep the last model "
            "or their own_best",
        ),
        (
            config.lr == "auto",
            "run.lr must be a number, since no party has all the data to choose one; `pomona run` "
            "chooses one on data like yours",
        ),
        (
            config.engine == "auto",
            "run.engine must be torch (the default) or native: what a silo has installed must "
            "not change its numbers silently",
        ),
    )
    refuse("section run", [problem for applies, problem in faults if applies], error=ConfigError)
