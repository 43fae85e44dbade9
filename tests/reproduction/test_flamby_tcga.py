"""FLamby's Fed-TCGA-BRCA: its split, Cox's loss over a batch, and the C-index."""

import runpy
from itertools import combinations

import numpy as np
import pytest
import torch
from paper_suites import FOLDER

from pomona.metrics.survival import c_index

SIZES = {  # Ogier du Terrail et al., table of Fed-TCGA-BRCA: training and test rows of a region
    0: (248, 63),
    1: (156, 40),
    2: (164, 42),
    3: (129, 33),
    4: (129, 33),
    5: (40, 11),
}
SCRIPT = runpy.run_path(str(FOLDER / "flamby_tcga.py"))
cox, concordance = SCRIPT["cox"], SCRIPT["concordance"]


def a_batch(size, seed):
    draws = np.random.default_rng(seed)
    targets = np.stack([draws.integers(1, 6, size), draws.integers(0, 2, size)], 1).astype(float)
    return draws.normal(size=(size, 2)), targets


def partial_likelihoods(scores, targets):
    """Event by event, from the definition: among equal times, those before it in the batch."""
    for i, (time, event) in enumerate(targets):
        at_risk = [
            s
            for j, (s, (t, _)) in enumerate(zip(scores, targets, strict=True))
            if t > time or (t == time and j <= i)
        ]
        yield event * (np.log(np.sum(np.exp(at_risk))) - scores[i])


@pytest.mark.parametrize("size", [0, 1, 2, 8])
def test_a_loss_is_each_events_partial_likelihood(size):
    for seed in range(20):
        outputs, targets = a_batch(size, seed)
        losses = cox(torch.from_numpy(outputs), torch.from_numpy(targets)).numpy()
        expected = list(partial_likelihoods(outputs[:, 0], targets))
        np.testing.assert_allclose(losses, expected, atol=1e-12)


def test_a_loss_keeps_its_value_when_targets_are_scaled():
    outputs, targets = map(torch.from_numpy, a_batch(8, 0))
    scaled = (targets - targets.mean(0)) / targets.std(0)
    torch.testing.assert_close(cox(outputs, scaled), cox(outputs, targets))


def test_a_gradient_lowers_the_loss_and_leaves_the_second_output():
    outputs, targets = map(torch.from_numpy, a_batch(8, 3))
    outputs.requires_grad_()
    loss = cox(outputs, targets).mean()
    (slope,) = torch.autograd.grad(loss, outputs)
    assert not slope[:, 1].any()
    assert cox(outputs - 0.01 * slope, targets).mean() < loss


@pytest.mark.parametrize("size", [2, 3, 9])
def test_the_c_index_is_the_share_of_pairs_in_order(size):
    for seed in range(20):
        scores, targets = a_batch(size, seed)
        survival = np.exp(-np.exp(scores[:, :1]))  # a higher score is a higher hazard
        expected = c_index(survival, targets, np.ones((1, size)))[0]
        assert concordance(scores, targets) == pytest.approx(expected, nan_ok=True)


def test_without_a_comparable_pair_there_is_no_c_index():
    for size in (0, 1):
        assert np.isnan(concordance(*a_batch(size, 0)))


def test_regions_have_the_rows_of_the_published_split(real_data, tmp_path):
    sets = SCRIPT["parts"](real_data / "tcga_brca")
    assert sets.keys() == {f"{split}_{n}" for n in SIZES for split in ("train", "test")}
    for number, (train, test) in SIZES.items():
        assert (len(sets[f"train_{number}"][0]), len(sets[f"test_{number}"][0])) == (train, test)
    times, events = np.concatenate([y for _, y in sets.values()]).T
    assert events.sum() == 151  # deaths; the time has days, up to 23 years
    assert set(events) == {0, 1}
    assert times.max() == 8605
    SCRIPT["write"](sets, tmp_path)
    pooled = np.load(tmp_path / "pooled_5.npz")
    assert pooled["x"].shape == (sum(train for train, _ in SIZES.values()), 39, 1)
    for a, b in combinations([np.load(tmp_path / f"pooled_{n}.npz")["y"] for n in SIZES], 2):
        np.testing.assert_array_equal(a, b)
