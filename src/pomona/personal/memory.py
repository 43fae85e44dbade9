"""kNN-Per: a model with a memory of its client's training rows, used at prediction.

Marfoq, Neglia, Kameni, Vidal. Personalized federated learning through local memorization. ICML 2022
(arXiv 2111.09360), section 3.

    memory           pairs (phi(x_j), y_j) of the client's rows;
                     phi(x) are the f numbers that the last layer receives
    neighbours       p_k(x) = sum_j [y_j = k] exp(-d_j / s) / sum_j exp(-d_j / s),
                     d_j = |phi(x) - phi(x_j)|,  over the m nearest rows j
    answer           lambda p(x) + (1 - lambda) softmax of the model's outputs

It personalises any trained model, the global one first of all, without training. The rows stay
where they are. lambda is the one with the least log loss on rows outside the memory (``weighed``).

The authors' code takes exp(-d^2 / (f s)), from squared distances, mixes p with the model's outputs,
as FL-bench's does (its switch for probabilities is never off), and prints the accuracy on test rows
for each lambda; far from all rows it divides 0 by 0, where here the nearest rows decide.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor

from pomona.core.errors import ConfigError, DataError, listed, suggestion
from pomona.personal.elsewhere import scenario_of
from pomona.personal.inputs import Samples
from pomona.personal.model import PersonalModel
from pomona.record.result import Result
from pomona.scenario import Scenario
from pomona.tasks import task_of

GRID = np.linspace(0, 1, 11)
"""Weights that ``weighed`` chooses from, as in the paper."""


@dataclass(frozen=True)
class MemoryModel:
    """A personal model whose answers about classes its client's rows share.

    Attributes:
        model: the trained model.
        memory: the rows' features and class numbers.
        weight: lambda, of the rows' answer.
    """

    model: PersonalModel
    memory: KNeighborsClassifier
    weight: float = 0.5

    @classmethod
    def from_rows(
        cls,
        model: PersonalModel,
        x: Any,
        y: Sequence[Any],
        neighbours: int = 10,
        scale: float = 1.0,
    ) -> "MemoryModel":
        """Return a model with rows in its memory, each half of the answer (lambda = 0.5).

        Args:
            model: of classes.
            x: rows, as for ``PersonalModel.outputs``.
            y: their classes, by name, or by number for a model whose classes have none.
            neighbours: rows that answer (m); all if there are fewer.
            scale: of the distances (s).

        Raises:
            ConfigError: another kind of targets, or a number out of bounds.
            DataError: no rows, or classes that the model does not know.
        """
        if model.about.targets != "classes":
            raise ConfigError(
                f"a memory answers about classes, and the model has {model.about.targets}; use "
                "the model as it is"
            )
        if neighbours < 1 or not scale > 0:
            raise ConfigError(f"{neighbours=} and {scale=}; give numbers above 0")
        features, classes = model.features(x).numpy(), class_numbers(model, y)
        if not 0 < len(features) == len(classes):
            raise DataError(
                f"{len(features)} rows and {len(classes)} classes for the memory; give a class for "
                "each row, and a row at least"
            )

        def weights(distances: NDArray[np.float64]) -> NDArray[np.float64]:
            nearest: NDArray[np.float64] = distances.min(1, keepdims=True)
            return np.exp((nearest - distances) / scale)

        count = min(neighbours, len(features))
        memory = KNeighborsClassifier(count, weights=weights, algorithm="brute")
        return cls(model, memory.fit(features, classes))

    def weighed(self, x: Any, y: Sequence[Any]) -> "MemoryModel":
        """Return the same with the weight of least log loss on further rows: not those in the
        memory, nor those of a test; of equal weights the smallest.
        """
        model_answer, neighbours = self._answers(x)
        truth = torch.from_numpy(class_numbers(self.model, y)).unsqueeze(1)
        mixed = torch.stack([torch.lerp(model_answer, neighbours, weight) for weight in GRID])
        likelihoods = mixed.gather(2, truth.expand(len(GRID), -1, -1))
        losses = -likelihoods.log().mean((1, 2))
        return replace(self, weight=float(GRID[int(losses.argmin())]))

    def probabilities(self, x: Any) -> Tensor:
        """Return the probabilities (n, K) float64 of all classes; ``x`` as for
        ``PersonalModel.outputs``.
        """
        return torch.lerp(*self._answers(x), self.weight)

    def predict(self, x: Any) -> list[dict[str, Any]]:
        """Return one answer per sample, as ``PersonalModel.predict``."""
        metadata = self.model.about
        predict = task_of(metadata.targets, metadata.edges).predict
        return predict(self.probabilities(x).log(), metadata.names)

    def _answers(self, x: Any) -> tuple[Tensor, Tensor]:
        """Return the probabilities (n, K) float64 of the model and of the rows in memory."""
        model_answer = torch.softmax(self.model.outputs(x).double(), 1)
        neighbours = torch.zeros_like(model_answer)
        if len(model_answer):
            shares = self.memory.predict_proba(self.model.features(x).numpy())
            neighbours[:, self.memory.classes_] = torch.from_numpy(shares).double()
        return model_answer, neighbours


@dataclass(frozen=True)
class Memories:
    """The memories of a run's clients: their training rows, of data that are read again.

    Attributes:
        result: the run.
        neighbours: rows that answer.
        weights: how each memory's weight was chosen, in words, by its client.
    """

    result: Result
    neighbours: int
    weights: dict[str, str] = field(default_factory=dict)

    @cached_property
    def _scenario(self) -> Scenario:
        return scenario_of(self.result)

    def of(self, client: int, model: PersonalModel) -> MemoryModel:
        """Return a client's model with its memory, whose weight its validation rows have chosen.

        Raises:
            ConfigError: as ``MemoryModel.from_rows`` and ``scenario_of``.
        """
        rows = self._scenario.partition.clients[client]
        memory = MemoryModel.from_rows(model, *self._rows(rows.train, model), self.neighbours)
        choice = "not chosen, without validation rows"
        if len(rows.validation):
            memory = memory.weighed(*self._rows(rows.validation, model))
            choice = f"chosen on {len(rows.validation)} validation rows"
        name = model.about.client
        self.weights[name] = f"{name} {memory.weight:g} ({choice})"
        return memory

    def _rows(
        self, rows: NDArray[np.int64], model: PersonalModel
    ) -> tuple[Samples, list[str | int]]:
        """Return samples and classes of rows, as the model takes them."""
        data, names = self._scenario.dataset, model.about.classes
        numbers = data.y[rows].tolist()
        return Samples(data.x[rows]), [names[k] for k in numbers] if names else numbers

    @property
    def note(self) -> str:
        """What the memories add to the answers, in one line."""
        return (
            f"kNN-Per: answers are mixed with those of the {self.neighbours} nearest training rows "
            f"of the model's client, by a weight from 0 to 1: {listed([*self.weights.values()], 8)}"
        )


def class_numbers(model: PersonalModel, y: Sequence[Any]) -> NDArray[np.int64]:
    """Return class numbers (m,) of classes by name, or by number where they have no names.

    Raises DataError for a class that the model does not know.
    """
    names = model.about.classes or [str(number) for number in range(model.about.outputs)]
    numbers = {name: number for number, name in enumerate(names)}
    labels = [str(label) for label in np.asarray(y).tolist()]
    if unknown := next((label for label in labels if label not in numbers), None):
        raise DataError(f"{unknown!r} is not a class of the model; {suggestion(unknown, names)}")
    return np.array([numbers[label] for label in labels], dtype=np.int64)
