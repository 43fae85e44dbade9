"""Every method learns masks: a tiny U-Net on tiny images trains, moves, stays finite, and is judged by its Dice."""

import numpy as np
import pytest

from masks import archive, settings
from pomona.config import resolve
from pomona.methods import METHODS
from pomona.simulation import run

VARIANTS = [
    ("apple", {"budget": 1}),
    ("fedala", {"layers": 2}),
    ("fedphp", {"transfer": "distillation"}),
    ("per-fedavg", {"order": "hf"}),
    ("partialfed", {"rule": "lower-shared"}),
]


@pytest.mark.parametrize(("name", "method"), [*((name, {}) for name in METHODS), *VARIANTS], ids=str)
def test_a_method_learns_masks(name, method, tmp_path):
    path = archive(tmp_path / "masks.npz")
    result = run(resolve(settings(path), {"method": {"name": name, **method}}), tmp_path / "run")
    evaluations = result.curve(*result.about["headline"])
    for seen in evaluations:
        assert all(loss is not None and np.isfinite(loss) for loss in seen.loss)
        assert all(value is None or 0 <= value <= 1 for value in seen.value)
    assert len(result.rounds) == 2
    assert not any(row.refused for row in result.rounds)
    assert len({seen.loss for seen in evaluations}) == len(evaluations)  # the model moved in each round
