"""Dice, IoU and surface distances: against MONAI, closed forms, and for empty masks."""

from functools import partial

import numpy as np
import pytest
import torch

from pomona.metrics.overlap import dice, iou, mean_dice, surface_distances
from pomona.tasks.scores import evaluate
from pomona.tasks.segmentation import TASK, counts, with_surfaces

CLASSES = 3
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)


def random_maps(n=5, side=9, seed=0):
    generator = torch.Generator().manual_seed(seed)
    outputs = torch.randn(n, CLASSES, side, side, generator=generator)
    return outputs, torch.randint(CLASSES, (n, side, side), generator=generator)


def judged(counted, pixels):
    draws = partial(np.random.default_rng, 0)
    return evaluate(TASK, TASK.natural(counted.numpy()), pixels.numpy(), draws)


def one_hot(numbers):
    return torch.nn.functional.one_hot(numbers, CLASSES).movedim(-1, 1)


def test_dice_and_iou_are_monais():
    monai = pytest.importorskip("monai.metrics")
    outputs, truth = random_maps()
    truth[0][truth[0] == 2] = 0  # class 2 is claimed in sample 0, and not there
    outputs[1, 2], truth[1] = -100.0, truth[1].clamp_max(1)  # neither there nor claimed in sample 1
    counted, _ = counts(outputs, truth)
    claimed, true = one_hot(outputs.argmax(1)), one_hot(truth)
    for ours, theirs in ((dice, monai.compute_dice), (iou, monai.compute_iou)):
        expected = theirs(claimed, true, ignore_empty=False)
        got = ours(counted.numpy().astype(float))
        assert np.isnan(got[1, 2])  # where MONAI says 1
        defined = ~np.isnan(got)
        assert got[defined] == pytest.approx(expected.numpy()[defined], rel=1e-6)
        assert defined.sum() == got.size - 1
    assert dice(counted.numpy().astype(float))[0, 2] == 0


def test_the_mean_over_samples_leaves_out_what_is_undefined():
    # 100 pixels, 4 of them class 1, of which 2 are found and 6 falsely claimed; then a sample
    # without foreground.
    figures = np.array([[90.0, 2, 2, 6, 6, 2], [100, 0, 0, 0, 0, 0]])
    pixels = np.array([[96, 4], [100, 0]])
    assert mean_dice(figures, pixels, np.ones((1, 2))) == pytest.approx([2 * 2 / (4 + 8)])
    assert np.isnan(mean_dice(figures[1:], pixels[1:], np.ones((1, 1)))).all()
    computed = evaluate(TASK, figures, pixels)
    assert computed["dice"] == pytest.approx(1 / 3)
    assert computed["iou"] == 2 / 10
    assert computed["regions"]["seen"] == [2, 1]
    assert computed["regions"]["pixels"] == [196, 4]
    assert computed["regions"]["dice"] == [pytest.approx((180 / 188 + 1) / 2), pytest.approx(1 / 3)]


@pytest.mark.parametrize("n", [0, 1])
def test_few_samples(n):
    outputs, truth = random_maps(n)
    counted, pixels = counts(outputs, truth)
    assert counted.shape == (n, 3 * CLASSES)
    computed = judged(counted, pixels)
    assert computed["samples"] == n
    assert (computed["dice"] is None) == (n == 0)
    # one sample, drawn again and again, tells nothing of others
    assert computed["intervals"]["dice"] is None


def test_intervals_hold_the_value_and_shrink_with_the_samples():
    widths = []
    for n in (10, 160):
        counted, pixels = counts(*random_maps(n))
        computed = judged(counted, pixels)
        low, high = computed["intervals"]["dice"]
        assert low < computed["dice"] < high
        widths.append(high - low)
        assert computed["regions"]["dice_interval"][1][0] < computed["regions"]["dice"][1]
    assert widths[1] < widths[0] / 2  # a quarter, up to chance


def test_distances_are_monais():
    monai = pytest.importorskip("monai.metrics")
    outputs, truth = random_maps(3, side=16, seed=1)
    claimed = outputs.argmax(1)
    got = surface_distances(claimed.numpy(), truth.numpy(), CLASSES, 1.0)
    hausdorff = monai.compute_hausdorff_distance(one_hot(claimed), one_hot(truth), percentile=95)
    surface = monai.compute_surface_dice(
        one_hot(claimed), one_hot(truth), class_thresholds=[1.0, 1.0]
    )
    assert np.isnan(got[:, [0, 3]]).all()  # of the background
    assert got[:, 1:3] == pytest.approx(hausdorff.numpy())
    assert got[:, 4:] == pytest.approx(surface.numpy())


def test_distance_of_a_shifted_square_and_of_nothing():
    pytest.importorskip("monai")
    true, claimed = (np.zeros((3, 16, 16), np.uint8) for _ in range(2))
    true[0, 4:8, 4:8] = claimed[0, 4:8, 7:11] = 1  # moved by three pixels
    true[1, 4:8, 4:8] = 1  # missed
    hausdorff, surface = np.split(surface_distances(claimed, true, 2, 1.0), 2, axis=1)
    assert hausdorff[:, 1] == pytest.approx([3, np.nan, np.nan], nan_ok=True)
    assert surface[1:, 1] == pytest.approx([0, np.nan], nan_ok=True)
    assert 0 < surface[0, 1] < 1
    assert surface_distances(true, true, 2, 1.0)[0].tolist()[1::2] == [0, 1]


def test_figures_of_a_last_model_have_distances_where_monai_is(monkeypatch):
    pytest.importorskip("monai")
    outputs, truth = random_maps(4, side=16)
    with_distances, pixels = with_surfaces(outputs, truth)
    counted, same_pixels = counts(outputs, truth)
    assert torch.equal(with_distances[:, : 3 * CLASSES], counted)
    assert torch.equal(pixels, same_pixels)
    computed = evaluate(TASK, TASK.natural(with_distances.numpy()), pixels.numpy())
    assert computed["regions"]["measured"] == [0, 4, 4]
    assert computed["regions"]["hd95"][0] is None
    assert computed["regions"]["hd95"][1] > 0
    monkeypatch.setattr("pomona.metrics.overlap.find_spec", lambda _: None)
    bare, _ = with_surfaces(outputs, truth)
    assert torch.equal(bare, counted)
    without_distances = evaluate(TASK, TASK.natural(bare.numpy()), pixels.numpy())
    assert computed["regions"].keys() - without_distances["regions"].keys() == {
        "hd95",
        "surface_dice",
        "measured",
    }
    assert without_distances["dice"] == computed["dice"]
