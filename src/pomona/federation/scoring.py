"""Scores of a client's models in a round, and their full metrics at the end of a run."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import product
from math import isfinite
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pomona.core.bounds import Stage
from pomona.core.errors import DivergedError
from pomona.metrics.metric import ACCURACY, Metric, Score, is_own
from pomona.metrics.nan_safe import Array, row_means
from pomona.metrics.outcomes import ThresholdTarget
from pomona.metrics.overlap import dice
from pomona.objective.dataset import DeviceDataset
from pomona.objective.objective import Objective
from pomona.record.predictions import Answers
from pomona.tasks.scores import compute, full_metrics, outcome_metrics

EVALUATED = ("validation", "test")
Model = tuple[str, Stage]
Figures = dict[str, Any]
Reduce = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
# (split, reduction) -> one model's answers
Predictor = Callable[[str, Reduce], tuple[Tensor, Tensor]]
# (a client's answers, its id) -> the confidence interval of a score
IntervalOf = Callable[[tuple[Tensor, Tensor], int], tuple[float, float] | None]


def no_interval(answers: tuple[Tensor, Tensor], client: int) -> None:
    """Compute no confidence interval (default), since a round has many scores that are viewed
    together.
    """


@dataclass(frozen=True)
class Scoring:
    """How models are scored.

    Attributes:
        metric: the headline metric.
        target: see ``Examination``.
        interval: confidence interval of a score.
    """

    metric: Metric = ACCURACY
    target: ThresholdTarget | None = None
    interval: IntervalOf = no_interval

    def scores(
        self,
        objective: Objective,
        model: Model,
        clients: Sequence[int],
        W: Tensor,
        splits: Sequence[str] = EVALUATED,
    ) -> list[list[Score]]:
        """Return the scores of each client's own row of a model's W (n, d) on each split, without
        values if the loss is not finite.

        A fault would let these samples decide who trains, and reveal what was agreed to be hidden:
        by sending huge weights, a server could test whether a record contains some value.
        """

        def measured(outputs: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
            losses, answers = objective.criterion(outputs, targets), task.reduce(outputs, targets)
            right = [task.right(*answers)] if task.right else []
            return (losses.double(), *answers, *right)

        data, task = objective.data, objective.data.task
        results = objective.batchwise_each(W, clients, splits, measured)
        return [
            [
                self._score(data, model, split, client, *result)
                if result
                else Score(*model, split, 0)
                for split, result in zip(splits, by_split, strict=True)
            ]
            for client, by_split in zip(clients, results, strict=True)
        ]

    def _score(
        self,
        data: DeviceDataset,
        model: Model,
        split: str,
        client: int,
        losses: Tensor,
        outputs: Tensor,
        targets: Tensor,
        right: Tensor | None = None,
    ) -> Score:
        samples, loss = len(losses), float(losses.mean())
        if not isfinite(loss):
            return Score(*model, split, samples)
        accuracy = None if right is None else int(right.sum()) / right.numel()
        answers = data.in_units(outputs, targets, client, split)
        match self.metric.name:
            case "accuracy":
                value = accuracy
            case "loss":
                value = loss
            case name:
                value = compute(name, *answers, data.task)
        interval = self.interval(answers, client)
        return Score(*model, split, samples, loss, accuracy, value, interval)


@dataclass(frozen=True)
class Examination:
    """A client's models and their answers on its samples, cached while this object exists.

    Attributes:
        metric: the headline metric.
        seed: of the run, for intervals.
        models: rows (d,) by (model, when).
        target: what outcomes' thresholds must reach on validation samples, if not Youden's index.
    """

    objective: Objective
    metric: Metric
    seed: int
    client: int
    models: Mapping[Model, Tensor]
    target: ThresholdTarget | None

    def final_metrics(self, model: Model) -> tuple[Answers | None, list[Figures]]:
        """Return answers of one model on test, and figures of all, in the order of their names.

        Returns:
            Outputs (n, K) on the client's test samples, and their targets, None without figures
            there; and figures.
        """
        answers, figures = None, self.metrics(sorted(self.models))
        if any((*model, "test") == (f["model"], f["when"], f["split"]) for f in figures):
            outputs, targets = self._predictors[model]("test", self.objective.data.task.reduce)
            answers = outputs.float().cpu().numpy(), targets.cpu().numpy()
        return answers, figures

    def metrics(self, models: Iterable[Model]) -> list[Figures]:
        """Return full metrics of the available ones of these models, one record per split with
        samples; none where the outputs are not finite.
        """
        records = []
        for (model, stage), split in product(models, EVALUATED):
            if (model, stage) in self.models and self._samples(split):
                with suppress(DivergedError):
                    figures = self._figures(self._predictors[model, stage], split)
                    labels = {"model": model, "when": stage, "split": split, "client": self.client}
                    records.append(labels | figures)
        return records

    def best_worst_masks(
        self, model: Model
    ) -> tuple[NDArray[np.int64], NDArray[np.uint8], Array] | None:
        """Return the predicted masks with the best and the worst Dice on the client's test samples.

        Returns:
            Row numbers (2,), class numbers (2, *S), and Dice (2,); None without masks, model or
            samples.
        """
        data, w = self.objective.data, self.models.get(model)
        if data.targets != "segmentation" or w is None or not self._samples("test"):
            return None

        def predicted(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
            return outputs.argmax(1).to(torch.uint8), data.task.reduce(outputs, targets)[0]

        masks, counts = (
            t.cpu().numpy() for t in self.objective.batchwise(w, self.client, "test", predicted)
        )
        scores = row_means(dice(counts.astype(float))[:, 1:])
        extremes = np.array(
            [np.nan_to_num(scores, nan=-1.0).argmax(), np.nan_to_num(scores, nan=2.0).argmin()]
        )
        return (
            data.rows["test"][self.client].cpu().numpy()[extremes],
            masks[extremes],
            scores[extremes],
        )

    @cached_property
    def _predictors(self) -> dict[Model, Predictor]:
        # The cache must not refer to this object: a cycle would keep the objective, and a ledger
        # that it locks, alive.
        return {
            model: cache(partial(answers_of, self.objective, self.client, w))
            for model, w in self.models.items()
        }

    def _figures(self, predict: Predictor, split: str) -> Figures:
        """Return full metrics of a model on a split; on test also of each outcome, at a threshold
        from validation.
        """
        task, groups = self.objective.data.task, self._groups(split)
        answers = predict(split, task.examine if split == "test" else task.reduce)
        figures = full_metrics(answers, task, seed=self.seed, client=self.client, groups=groups)
        if is_own(self.metric.name):
            # of the same arrays as in the rounds, without what ``examine`` adds
            figures[self.metric.name] = compute(
                self.metric.name, *predict(split, task.reduce), task
            )
        if split != "test" or not task.outcomes:
            return figures
        validation = predict("validation", task.reduce) if self._samples("validation") else None
        address, target = {"seed": self.seed, "client": self.client}, self.target
        return figures | outcome_metrics(
            answers, validation, task, **address, target=target, groups=groups
        )

    def _groups(self, split: str) -> NDArray[np.int64] | None:
        """Return the group of each sample of a split, numbered from 0 on; None if the samples are
        independent.
        """
        data = self.objective.data
        if (split, self.client) not in data.clustered or data.groups is None:
            return None
        numbers = data.groups[data.rows[split][self.client]].cpu().numpy()
        return np.unique(numbers, return_inverse=True)[1].ravel().astype(np.int64)

    def _samples(self, split: str) -> int:
        return len(self.objective.data.rows[split][self.client])


def answers_of(
    objective: Objective, client: int, w: Tensor, split: str, reduce: Reduce
) -> tuple[Tensor, Tensor]:
    """Return a model's outputs on a split with samples, and the targets, both reduced and in
    units.
    """
    outputs, targets = objective.batchwise(w, client, split, reduce)
    return objective.data.in_units(outputs, targets, client, split)
