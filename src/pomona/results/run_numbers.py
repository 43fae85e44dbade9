"""The named numbers of runs: model, moment, round, and kind of average.

Shared by the page, its figures and the command line.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath
from typing import Any

import numpy as np

from pomona.core.bounds import plain
from pomona.core.toml import flat
from pomona.data.catalogue import CATALOGUE
from pomona.metrics.metric import Metric
from pomona.record.headline import STAGE_NAMES, headline, headline_evaluation
from pomona.record.result import Result
from pomona.record.rows import Evaluation
from pomona.results.method_colours import Style, styles
from pomona.results.wording import counted

SEPARATE = "separate"
"""The baseline for every method: each client trains only on its own data."""


@dataclass(frozen=True, eq=False)
class Run:
    """A result with what distinguishes it from others on the page.

    Attributes:
        result: the run.
        label: the method's name, with the distinguishing settings if several runs share the method.
        style: its style in every chart of the page.
        seeds: the runs whose mean it is, see ``seeds.over_seeds``; empty for a run of one seed.
    """

    result: Result
    label: str
    style: Style
    seeds: tuple["Run", ...] = ()

    @property
    def test(self) -> list[Evaluation]:
        """Headline evaluations on the test split, by round."""
        key = headline(self.result)
        return self.result.curve(*key) if key else []

    @cached_property
    def reported(self) -> Evaluation | None:
        """The headline evaluation for comparing runs, see ``headline_evaluation``."""
        return headline_evaluation(self.result)

    @property
    def validation(self) -> list[Evaluation]:
        """Headline evaluations on the validation split, by round."""
        key = headline(self.result)
        return self.result.curve(*key, "validation") if key else []

    @property
    def moment(self) -> str:
        """The round of ``reported``, in words."""
        rounds = {r.reported.round for r in self.seeds or (self,) if r.reported}
        if len(rounds) != 1:
            return "after the round that each seed is compared by" if rounds else ""
        return f"after round {rounds.pop()}" + (
            ", the best on validation" if self.setting("keep") == "best" else ""
        )

    @property
    def metric(self) -> Metric:
        """Headline metric of the run."""
        return self.result.metric

    @cached_property
    def values(self) -> dict[int, float]:
        """Client -> the metric of the headline model on its test split, after the round of
        ``reported``.
        """
        evaluation = self.reported
        pairs = zip(evaluation.clients, evaluation.value, strict=True) if evaluation else ()
        return {client: value for client, value in pairs if value is not None}

    @property
    def mean(self) -> float | None:
        """Mean of ``values``."""
        return self.reported.mean if self.reported else None

    @property
    def loss(self) -> str:
        """Name of the training loss; empty if not recorded."""
        return str(self.setting("model.loss") or "")

    @cached_property
    def constant(self) -> dict[int, float]:
        """Client -> the metric of the best constant prediction by its own training labels.

        Empty if not recorded.
        """
        scores = (self.result.about.get("constant") or {}).get("own", {}).get(
            self.metric.name
        ) or {}
        return {c: v for c, v in enumerate(scores.get("clients") or ()) if v is not None}

    @property
    def model(self) -> str:
        """The headline model and its moment, in words."""
        evaluation = self.reported
        if evaluation:
            return f"{evaluation.model} model, {stage_name(evaluation.when)}"
        return "no model was evaluated"

    def setting(self, key: str) -> Any:
        """Return a setting by its dotted key, None if the run has no such key."""
        return flat(self.result.config).get(key)

    @property
    def source(self) -> str:
        """Name of the run's data: own data by their file or folder, or as the clients' files; empty
        if unknown.
        """
        name = str(self.setting("data.name") or "")
        if self.setting("data.clients"):
            return f"the own files of {counted(self.result.clients, 'client')}"
        path = None if name in CATALOGUE else self.setting("data.path")
        return (path and PurePath(str(path)).name) or name

    def client(self, number: int) -> str:
        """Return a client's name, its number where a run compared with others has fewer clients."""
        names = self.result.about["clients"]
        return str(names[number]) if number < len(names) else f"client {number}"

    def units(self, client: int, samples: int) -> int:
        """Return the number of independent units among a client's test samples: their groups, if
        known.
        """
        groups = self.result.groups(client)
        return samples if groups is None else len(np.unique(groups))

    @property
    def scenario(self) -> tuple[Any, Any]:
        """Key that two runs must share to be compared by client: hashes of data and partition."""
        data = self.result.about.get("data") or {}
        return (data.get("fingerprint"), self.result.about.get("partition_sha256"))


def records(run: Run) -> list[dict[str, Any]]:
    """Return the final test records of the headline model, by client; after the round of
    ``reported``.
    """
    key = headline(run.result)
    mine = [
        r
        for r in run.result.final
        if (r.get("model"), r.get("when")) == key and r.get("split") == "test"
    ]
    return sorted(mine, key=lambda record: int(record["client"]))


def stage_name(stage: str) -> str:
    """Return the stage of an evaluation, in words."""
    return STAGE_NAMES.get(stage, stage)


def evaluated(*runs: Run) -> str:
    """Return the round of the models shown, in words; with its number if the runs share it."""
    single = [r for run in runs for r in run.seeds or (run,)]
    rounds = {(run.reported.round, run.setting("keep") == "best") for run in single if run.reported}
    if len(rounds) != 1:
        return "after the round that each run is compared by"
    number, best = rounds.pop()
    return f"after round {number}, the {'best on validation' if best else 'last one evaluated'}"


def runs(results: list[Result]) -> list[Run]:
    """Give each result a unique label and a style."""
    titles = [result.presentation.title for result in results]
    labels = [label(result, results) for result in results]
    unique = [_unique_label(k, labels, results) for k in range(len(results))]
    return [Run(*fields) for fields in zip(results, unique, styles(titles), strict=True)]


def _unique_label(k: int, labels: list[str], results: list[Result]) -> str:
    """Return the label of run k; with its folder's name, or a number, if others have the label."""
    twins = [i for i, name in enumerate(labels) if name == labels[k]]
    if len(twins) == 1:
        return labels[k]
    folders = {i: plain(folder.name) for i in twins if (folder := results[i].folder)}
    distinct = len({*folders.values()} - {""}) == len(twins)
    return f"{labels[k]}, {folders[k] if distinct else f'run {twins.index(k) + 1}'}"


def label(result: Result, results: list[Result]) -> str:
    """Return the method's title, with the settings that distinguish runs of one method, if any."""
    twins = [r for r in results if r.name == result.name]
    apart = _difference(result, twins) if len(twins) > 1 else ""
    return f"{result.presentation.title}, {apart}" if apart else result.presentation.title


def _difference(result: Result, twins: list[Result]) -> str:
    """Return the settings that distinguish runs of one method, such as ``mu 0.1, seed 2``: the
    method's first.

    As many as needed to distinguish all of them, and two where two differ.
    """
    settings = [flat(twin.config) for twin in twins]
    mine = flat(result.config)
    differing = [key for key in mine if len({repr(s.get(key)) for s in settings}) > 1]
    differing.sort(key=lambda key: (not key.startswith("method."), not key.startswith("model.")))
    chosen: list[str] = []
    apart = 1
    for key in differing:
        count = len({repr([s.get(k) for k in (*chosen, key)]) for s in settings})
        if count > apart or len(chosen) < 2:
            chosen.append(key)
            apart = count
    return ", ".join(f"{key.rpartition('.')[2]} {mine[key]}" for key in chosen)


def same_metric(candidates: list[Run]) -> list[Run]:
    """Return the runs with the same metric as the first."""
    return [run for run in candidates if run.metric == candidates[0].metric]


def leader(candidates: list[Run]) -> Run | None:
    """Return the run with the best headline value, averaged over clients, among those with the
    first one's metric.
    """
    rivals = same_metric(candidates)
    scored = [(run.metric.goodness(run.mean), run) for run in rivals if run.mean is not None]
    return max(scored, key=lambda pair: pair[0])[1] if scored else next(iter(rivals), None)


def baseline(prepared: list[Run], reference: Run) -> Run | None:
    """Return the run of separate training on the same scenario as ``reference``, with the same
    metric.
    """
    matching = (
        r for r in prepared if r.scenario == reference.scenario and r.metric == reference.metric
    )
    return next((r for r in matching if r.result.name == SEPARATE), None)


def contender(prepared: list[Run]) -> Run | None:
    """Return the best run to compare with local training; local training itself without
    others.
    """
    base = baseline(prepared, prepared[0]) if prepared else None
    return leader([run for run in prepared if run is not base]) or base


def comparable(prepared: list[Run]) -> bool:
    """Return whether the runs share one scenario and one metric, so that their numbers can be
    ranked.
    """
    return len({(run.scenario, run.metric.name) for run in prepared}) == 1
