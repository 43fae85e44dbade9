"""A first run with default settings learns, for every method."""

import numpy as np
import pytest

import pomona
from pomona.methods import METHODS
from representatives import representatives

pytestmark = pytest.mark.long


@pytest.mark.parametrize(
    "method", representatives(sorted(METHODS), ["apple", "fedala", "ditto", "fedper", "scaffold"])
)
def test_with_default_settings_every_method_beats_a_constant_answer_by_far(method):
    """Digits, Dirichlet(1.0) over six clients: the best constant answer is each client's most
    frequent class.
    """
    config = pomona.Config(
        method={"name": method},
        data={"name": "digits", "train_limit": 900},
        partition={"name": "dirichlet", "beta": 1.0},
        clients=6,
        rounds=20,
        eval_every=20,
        workers=1,
    )
    result = pomona.run(config)
    last = result.curve(*config.method.method().card.headline)[-1]
    counts = np.array(result.about["label_counts"])
    constant = (counts.max(axis=1) / counts.sum(axis=1)).mean()
    assert np.mean([a for a in last.accuracy if a is not None]) > constant + 0.25
