"""CPU hours of the runs of ``reproduction/apple-length.toml``, from one pass of each method over a
part of the images.

    python benchmarks/suite_cost.py [--quick] [key=value ...]

Each method trains twice on images of noise as large as MNIST's, one local epoch a round, its models
not evaluated and evaluated. A run has the epochs of all of its rounds, and an evaluation every
``eval_every`` rounds, in proportion to the images; fine-tuning for an evaluation counts as part of
it. ``engine=native`` measures that engine.
"""

from dataclasses import dataclass
from pathlib import Path
from time import process_time

import torch

from pomona.cli.bench import merged
from pomona.config import read_overrides
from pomona.core.toml import Tree
from pomona.experiments.suite import read_suite
from rounds import Rounds, noise, scenario_of
from timing import Table, chosen, publish

SUITE = Path(__file__).parents[1] / "reproduction" / "apple-length.toml"
TRAIN, TEST = 60_000, 10_000  # MNIST's images
EVALUATED = frozenset({"received", "trained"})


@dataclass(frozen=True)
class Size:
    """Training images, of which the suite has 60,000, and settings of every run."""

    images: int
    settings: Tree


FULL = Size(6_000, {})
QUICK = Size(300, {"model": {"name": "mlp"}, "batch_size": 16})


def main(size: Size, words: list[str]) -> list[Table]:
    """Measure and print."""
    torch.set_num_threads(1)
    images = size.images * (TRAIN + TEST) // TRAIN
    small = {
        "engine": "torch",
        "local_epochs": 1,
        "data": {"name": "rounds:noise", "test_share": TEST / (TRAIN + TEST)},
    }
    suite = read_suite(SUITE)
    whole = suite.config("full", "mnist-pathological", "separate", {}, 0)
    settings = merged(merged(small, size.settings), read_overrides(words))
    suite, share = suite.model_copy(update={"settings": settings}), TRAIN / size.images
    rows = {}
    for method, row in suite.method.items():
        config = suite.config("full", "mnist-pathological", method, {}, 0)
        runs = [
            Rounds(scenario_of(config, noise(images)), watched=seen)
            for seen in (frozenset(), EVALUATED)
        ]
        plain, watched = map(_seconds, runs)
        epochs, looks = whole.rounds * whole.local_epochs, whole.rounds // whole.eval_every
        hours = share * (epochs * plain + looks * max(0.0, watched - plain)) / 3600
        rows[row.row] = {"s a pass": plain, "s a pass and an evaluation": watched, "h a run": hours}
    about = {
        "engine": config.engine,
        "images": size.images,
        "model": config.model.name,
        "batch": config.batch_size,
    }
    return [publish("CPU time of a run of apple-length, size full", rows, 1, **about)]


def _seconds(rounds: Rounds) -> float:
    """CPU seconds of the second round; the first warms up."""
    rounds.run()
    began = process_time()
    rounds.run()
    return process_time() - began


if __name__ == "__main__":
    main(*chosen(QUICK, FULL))
