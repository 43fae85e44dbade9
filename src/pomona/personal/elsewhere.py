"""Each client's model on the other clients' test rows: whether a personal model works elsewhere.

It is compared on the same rows with the models of the clients whose rows these are, in pairs, so
that rows which are hard for every model count for none.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from pomona.config import Config
from pomona.core.errors import ConfigError, listed
from pomona.federation.scoring import answers_of
from pomona.metrics.influence import Evidence
from pomona.metrics.metric import LOSS, array
from pomona.metrics.nan_safe import divide
from pomona.models.parameter_space import ParameterSpace
from pomona.objective.objective import Objective
from pomona.record.elsewhere import Elsewhere
from pomona.record.paired_gain import ExcludedClient, Gain, determined, evidence, mean_gain
from pomona.record.result import Result
from pomona.record.run_folder import require_unchanged
from pomona.scenario import Scenario
from pomona.scenario.description import groups_of_test_rows
from pomona.tasks.scores import Answers, compute

ProgressCallback = Callable[[int, int], None]  # (models evaluated, models)
Scores = list[list[float | None]]
MAX_NAMES = 8


def elsewhere(
    result: Result, data: Any = None, report_progress: ProgressCallback = lambda *_: None
) -> Elsewhere:
    """Evaluate each client's model of a finished run on every other client's test rows.

    That is N models on all clients' test rows, of data that are read again. The scores are also
    written into the run's folder, if it has one: its report shows them.

    Args:
        result: of ``pomona.run`` or ``pomona.load``.
        data: the run's data, if they were in memory; else they are read as in the run.
        report_progress: called with the numbers of models evaluated so far and of all.

    Raises:
        ConfigError: no models, the models of a deployed federation, or other data than the run's.
        StorageError: the folder cannot be written, or its files changed since the run.
    """
    models = _Models(result, scenario_of(result, data))
    n, evaluated = result.clients, [*result.models]
    scores: Scores = [[None] * n for _ in range(n)]
    gains: list[Gain | None] = [None] * n
    for count, client in enumerate(evaluated):
        report_progress(count, len(evaluated))
        scores[client], gains[client] = models.evaluate(client)
    report_progress(len(evaluated), len(evaluated))
    notes = models.notes(scores, gains)
    evaluations = Elsewhere(rounds=len(result.rounds), scores=scores, gains=gains, notes=notes)
    if result.folder:
        evaluations.save(result.folder)
    return evaluations


def scenario_of(result: Result, data: Any = None) -> Scenario:
    """Return a run's data and partition, as they were. Raises as ``elsewhere``."""
    if not result.config.get("partition"):
        raise ConfigError(
            f"{result.folder} is of a deployed federation: models and rows stay with their silos"
        )
    if not result.models:
        raise ConfigError(f"{result.folder or 'this run'} has no models; finish the run first")
    if result.folder:
        require_unchanged(result.folder)
    settings = {**result.config, "device": "auto", "cluster": None}
    scenario = Scenario.prepare(Config(**settings | ({} if data is None else {"data": data})))
    if scenario.partition.sha256 != result.about["partition_sha256"]:
        raise ConfigError(
            "the data are not those of the run, or are divided in another way; give the same files"
            + (" or data" if data is not None else ", or the run's data if they were in memory")
        )
    return scenario


@dataclass(frozen=True)
class _Models:
    """The models of a run's clients, evaluated on test rows."""

    result: Result
    scenario: Scenario

    @cached_property
    def _objective(self) -> Objective:
        return self.scenario.objective()

    @cached_property
    def _local(self) -> Mapping[int, Answers | None]:
        """The answers of each client's model on the client's own test rows."""
        return {i: self._answers(self._row(i), i) for i in self.result.models}

    def _row(self, client: int) -> Tensor:
        space = ParameterSpace(self.scenario.module(), self.scenario.config.buffers)
        return space.row(self.result.models[client]).to(self.scenario.config.device)

    def _answers(self, row: Tensor, site: int) -> Answers | None:
        """Return a model's answers on a client's test rows; None without rows, or if outputs are
        not finite.
        """
        if not len(self.scenario.partition.clients[site].test):
            return None
        answered = answers_of(self._objective, site, row, "test", self.scenario.task.reduce)
        return answered if bool(answered[0].isfinite().all()) else None

    def evaluate(self, client: int) -> tuple[list[float | None], Gain | None]:
        """Return the scores (N,) of a client's model at all clients, and its mean gain over the
        others' own models.
        """
        row = self._row(client)
        by_site = {site: self._answers(row, site) for site in range(self.result.clients)}
        scores = [
            None if answered is None else self._score(row, site, answered)
            for site, answered in by_site.items()
        ]
        compared = {j: self._compared(a, j) for j, a in by_site.items() if j != client}
        return scores, mean_gain(self.result, compared)

    def _score(self, row: Tensor, site: int, answered: Answers) -> float | None:
        metric = self.result.metric
        if metric == LOSS:  # the one that the run minimised
            return float(self._objective.losses(row, site, "test").double().mean())
        return compute(metric.name, *answered, self.scenario.task)

    def _compared(self, answered: Answers | None, site: int) -> Evidence | ExcludedClient:
        """Return the evidence for a gain over a client's own model on its test rows."""
        local, task, metric = self._local.get(site), self.scenario.task, self.result.metric
        compared = None
        if answered and local and determined(metric, task, [self.result]):
            predictions, base = (task.natural(array(outputs)) for outputs, _ in (answered, local))
            groups = groups_of_test_rows(self.scenario).get(site)
            compared = evidence(metric, task, predictions, base, array(local[1]), groups)
        rows = len(self.scenario.partition.clients[site].test)
        return compared or ExcludedClient(site, rows, None)

    def notes(self, scores: Scores, gains: Sequence[Gain | None]) -> list[str]:
        """Return what was left out, and why a model may fail, in sentences."""
        models, sites = self.result.models, range(self.result.clients)
        modelless = {i for i in sites if i not in models}
        undefined = {j for j in sites if any(scores[i][j] is None for i in models)}
        excluded = {e.client for gain in gains if gain for e in gain.excluded}
        clients = {
            "Without a model, as they took part in no round": modelless,
            f"Test rows that do not define {self.result.metric.title}": undefined,
            "Too few test rows for a comparison of models": excluded - undefined - modelless,
        }
        lines = {
            text: [self.scenario.names[i] for i in sorted(ids)] for text, ids in clients.items()
        }
        lines["Share of the other clients' training rows whose class a client does not have"] = (
            self._unknown_classes()
        )
        if len(self.scenario.dataset.preprocessing) > 1:
            lines["Rows are prepared as at the client that has them"] = ["data.fit = client"]
        return [f"{text}: {listed(names, MAX_NAMES)}." for text, names in lines.items() if names]

    def _unknown_classes(self) -> list[str]:
        """Return each client with the share of the others' training rows in classes that it has
        none of, if any.
        """
        counts = np.array(self.result.about["label_counts"] or np.ones((self.result.clients, 1)))
        foreign = counts.sum(axis=0) - counts
        shares = 100 * divide((foreign * (counts == 0)).sum(axis=1), foreign.sum(axis=1))
        return [
            f"{name} ({share:.0f} %)"
            for name, share in zip(self.scenario.names, shares, strict=True)
            if share > 0
        ]
