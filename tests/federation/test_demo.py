"""The demo works as described: partners in the same group help, and the directed relationships show
the groups.
"""

from functools import cache

import numpy as np
import pytest

import pomona
from pomona.cli.run import DEMO, DEMO_METHODS
from pomona.config import resolve
from pomona.results.figures.relationships import order
from representatives import representatives


@cache
def run(name, seed):
    """A run of a method of the demo."""
    settings = next(s for s in DEMO_METHODS if s["method"]["name"] == name)
    return pomona.run(resolve(DEMO, settings, {"seed": seed}))


@pytest.mark.parametrize("seeds", representatives([1, 5], [1]))
@pytest.mark.slow
def test_apple_beats_going_alone_and_one_model_for_all(seeds):
    """Mean client test accuracy of the headline models in the round best on validation, over the
    first seeds.
    """

    def mean(name):
        runs = [run(name, seed) for seed in range(seeds)]
        return np.mean(
            [r.summary["models"][r.summary["headline"]]["best_validation"]["test"] for r in runs]
        )

    assert mean("apple") > mean("separate") + 0.06
    assert mean("apple") > mean("fedavg") + 0.03


@pytest.mark.parametrize("seed", representatives(range(5), [0]))
@pytest.mark.long
def test_the_directed_relationships_tell_the_groups_apart(seed):
    """Clients weigh partners of their own hidden group at least half as much again as others, and
    clustering finds the four.
    """
    result = run("apple", seed)
    groups, dr = np.array(result.about["groups"]), result.matrices("dr")[-1][1]
    same_group, diagonal = groups[:, None] == groups, np.eye(24, dtype=bool)
    assert dr[same_group & ~diagonal].mean() > 1.5 * dr[~same_group].mean()
    clustered = groups[order(dr)]
    assert (np.diff(clustered) != 0).sum() == 3  # four groups, each in one piece
