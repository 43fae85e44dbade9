"""The demo keeps its promise: the right partners help, and the directed relationships show who they are."""

import numpy as np
import pytest

import pomona
from pomona.cli.run import DEMO, DEMO_METHODS
from pomona.config import resolve
from pomona.results.figures.relationships import order

SEEDS = range(3)


@pytest.fixture(scope="module")
def results():
    """APPLE and what it is compared with, three seeds each."""
    methods = {m["name"]: m for m in DEMO_METHODS if m["name"] in {"apple", "separate", "fedavg"}}
    return {n: [pomona.run(resolve(DEMO, {"method": m, "seed": s})) for s in SEEDS] for n, m in methods.items()}


def test_apple_beats_going_alone_and_one_model_for_all(results):
    """Mean client test accuracy of the judged models in the round best on validation, over three seeds."""
    mean = {
        name: np.mean([r.summary["models"][r.summary["headline"]]["best_validation"]["test"] for r in runs])
        for name, runs in results.items()
    }
    assert mean["apple"] > mean["separate"] + 0.005
    assert mean["apple"] > mean["fedavg"] + 0.03


@pytest.mark.parametrize("seed", SEEDS)
def test_the_directed_relationships_tell_the_groups_apart(results, seed):
    """Clients weigh partners of their own hidden group at least half as much again as others, and clustering finds the four."""
    result = results["apple"][seed]
    groups, dr = np.array(result.about["groups"]), result.matrices("dr")[-1][1]
    same, own = groups[:, None] == groups, np.eye(12, dtype=bool)
    assert dr[same & ~own].mean() > 1.5 * dr[~same].mean()
    clustered = groups[order(dr)]
    assert (np.diff(clustered) != 0).sum() == 3  # four groups, each in one piece
