"""How often the 95 % interval of a client's own score contains the score of all its samples.

    python tools/calibrate_scores.py                 # the table of docs/internals/statistics.md
    python tools/calibrate_scores.py auprc --repeats 100

The true score is that of ``POPULATION`` samples drawn in the same way. Samples without an interval
are not counted; their share is in brackets.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from calibrate import masked, numbers
from pomona.core.rng import stream
from pomona.tasks import TASKS
from pomona.tasks.scores import evaluate
from pomona.tasks.task import Task

POPULATION = 50_000
SAMPLES = (12, 30, 100, 400)
Predictions = tuple[np.ndarray, np.ndarray]  # and targets


@dataclass(frozen=True)
class Population:
    """What a client's test samples are drawn from.

    Attributes:
        task: how they are judged.
        draw: (generator, number) -> predictions and targets.
        metrics: those with an interval by the bootstrap.
    """

    task: Task
    draw: Callable[[np.random.Generator, int], Predictions]
    metrics: tuple[str, ...]


def classes(draw: np.random.Generator, n: int, shares: Sequence[float]) -> Predictions:
    """Softmax of normal scores, 1.5 higher for the true class."""
    k = len(shares)
    y = draw.choice(k, n, p=shares)
    scores = draw.normal(size=(n, k)) + 1.5 * np.eye(k)[y]
    exponentials = np.exp(scores)
    return exponentials / exponentials.sum(1, keepdims=True), y


def first(sample: Callable[..., tuple[np.ndarray, ...]]) -> Callable[..., Predictions]:
    """The first model's predictions and the targets of a draw of ``calibrate``."""

    def drawn(draw: np.random.Generator, n: int) -> Predictions:
        predictions, _, targets = sample(draw, n, 0, 0.0)
        return predictions, targets

    return drawn


CLASSES = ("balanced_accuracy", "macro_f1", "auprc", "brier")
POPULATIONS = {
    "2 classes, 30 %": Population(TASKS["classes"], partial(classes, shares=(0.7, 0.3)), CLASSES),
    "2 classes, 10 %": Population(TASKS["classes"], partial(classes, shares=(0.9, 0.1)), CLASSES),
    "4 classes": Population(
        TASKS["classes"], partial(classes, shares=(0.25,) * 4), ("auroc", *CLASSES)
    ),
    "10 classes": Population(
        TASKS["classes"], partial(classes, shares=(0.1,) * 10), ("auroc", *CLASSES)
    ),
    "numbers": Population(TASKS["regression"], first(numbers), ("mae", "mse", "r2")),
    "masks": Population(TASKS["segmentation"], first(masked), ("dice", "iou")),
}


def coverage(population: Population, n: int, repeats: int) -> dict[str, tuple[float, float]]:
    """For each metric the share of its intervals that contain the true value, and of samples
    without an interval.
    """
    truth = evaluate(population.task, *population.draw(stream(0, "truth"), POPULATION))
    draw = stream(0, "scores", n)
    hits: dict[str, list[bool]] = {name: [] for name in population.metrics}
    for k in range(repeats):
        sample = population.draw(draw, n)
        intervals = evaluate(population.task, *sample, partial(stream, k, "resamples"))["intervals"]
        for name, covered in hits.items():
            if interval := intervals.get(name):
                covered.append(interval[0] <= truth[name] <= interval[1])
    return {
        name: (float(np.mean(covered)) if covered else np.nan, 1 - len(covered) / repeats)
        for name, covered in hits.items()
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("metrics", nargs="*")
    parser.add_argument("--repeats", type=int, default=400)
    options = parser.parse_args()
    print(f"| samples | metric | {' | '.join(map(str, SAMPLES))} |")
    print("| --- |" + " --- |" * (len(SAMPLES) + 1))
    for title, population in POPULATIONS.items():
        metrics = [m for m in population.metrics if m in (options.metrics or population.metrics)]
        if metrics:
            rates = [coverage(population, n, options.repeats) for n in SAMPLES]
        for name in metrics:
            texts = [f"{100 * r[name][0]:.1f} ({100 * r[name][1]:.0f})" for r in rates]
            print(f"| {title} | {name} | {' | '.join(texts)} |", flush=True)


if __name__ == "__main__":
    main()
