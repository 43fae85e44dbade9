"""Patches in training: their positions, their random draws, and identical patches on every
engine.
"""

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from masks import archive, settings
from pomona.config import resolve
from pomona.core.errors import ConfigError
from pomona.objective.batches import View
from pomona.objective.dataset import window
from pomona.objective.private import PrivateObjective
from pomona.objective.pytorch import TorchObjective
from pomona.objective.stacked import StackedObjective
from pomona.objective.training import LocalTraining
from pomona.privacy.settings import Privacy
from pomona.scenario import Scenario
from problems import a_round

pytest.importorskip("monai")

VIEW = View(0, 7, 2, "training", 3)


def scenario(folder, size=(4, 6), volume=False, **options):
    path = archive(folder / "masks.npz", side=8, volume=volume)
    base = settings(path)
    network = {"name": "masks:pixelwise", **options.pop("model", {})}
    return Scenario.prepare(
        resolve(base, {"model": {**network, "patch": {"size": list(size)}}, **options})
    )


def offsets(sides, size, draw):
    return tuple(span.start for span in window(sides, size, draw))


def test_every_place_within_an_image_is_as_likely_as_any_other():
    """3 x 2 places for a patch (3, 3) of an image (5, 4); the counts of 6000 draws are within 5
    deviations.
    """
    count = torch.zeros(3, 2)
    for k in range(6000):
        count[offsets((5, 4), (3, 3), View(0, 1, 1, "training", 0).generator(k))] += 1
    deviation = (6000 * (1 / 6) * (5 / 6)) ** 0.5
    assert (count - 1000).abs().max() < 5 * deviation


def test_without_a_draw_a_patch_is_the_middle():
    assert offsets((8, 9, 5), (4, 4, 5), None) == (2, 2, 0)


@pytest.mark.parametrize("volume", [False, True])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.float32])
def test_a_patch_is_cut_where_its_own_stream_says_and_its_mask_with_it(volume, dtype, tmp_path):
    size = (4, 6, 5)[: 2 + volume]
    data = scenario(tmp_path, size, volume).resident
    data = replace(data, x=data.x.to(dtype))
    index = data.rows["train"][0][2:6]
    images, masks = data.gather(index)
    for view in (VIEW, None):
        x, y = data.training_view(index, view)
        assert (x.dtype, y.dtype) == (torch.float32, torch.int64)
        for k in range(len(index)):
            # their places among its own
            inside = window(masks.shape[1:], size, view and view.generator(2 + k))
            assert torch.equal(x[k], images[(k, slice(None), *inside)])
            assert torch.equal(y[k], masks[(k, *inside)])


def test_augmentation_draws_on_from_where_the_patch_stopped(tmp_path):
    data = replace(scenario(tmp_path).resident, augment=("flip:0.5", "flip-vertical:0.5"))
    index = data.rows["train"][0]
    x, y = data.training_view(index, VIEW)
    plain, masks = replace(data, augment=()).training_view(index, VIEW)
    turned = [
        [axis for axis in (2, 1) if draw.random() < 0.5]
        for draw in _after_their_patches(len(index))
    ]
    assert len({tuple(axes) for axes in turned}) > 1
    for k, axes in enumerate(turned):
        assert torch.equal(x[k], plain[k].flip(axes))
        assert torch.equal(y[k], masks[k].flip([axis - 1 for axis in axes]))


def _after_their_patches(n):
    draws = [VIEW.generator(position) for position in range(n)]
    for draw in draws:
        window((8, 8), (4, 6), draw)
    return draws


def test_a_samples_patch_does_not_depend_on_who_is_beside_it(tmp_path):
    data = scenario(tmp_path).resident
    index = data.rows["train"][0]
    all_patches, _ = data.training_view(index, VIEW)
    for subset in ([3, 4], [0], list(range(len(index)))[::-1]):
        assert torch.equal(data.training_view(index[subset], VIEW)[0], all_patches[subset])
    for other_view in (
        replace(VIEW, seed=8),
        replace(VIEW, round=3),
        replace(VIEW, step=4),
        replace(VIEW, purpose="ala"),
    ):
        assert not torch.equal(data.training_view(index, other_view)[0], all_patches)


def test_engines_see_the_same_patches(tmp_path):
    ready = scenario(tmp_path)
    module, space = ready.network.trained()
    loop = ready.objective()
    assert isinstance(loop, TorchObjective)
    stacked = StackedObjective(module, space, ready.resident, loop.criterion)
    W = torch.stack([ready.initial(), 0.9 * ready.initial()])
    indices = [ready.resident.rows["train"][c][: 4 - c] for c in (0, 1)]
    views = [replace(VIEW, client=c) for c in (0, 1)]
    for choice in (views, None):
        assert_close(
            loop.gradient(W, indices, views=choice), stacked.gradient(W, indices, views=choice)
        )
    assert not torch.allclose(
        loop.gradient(W, indices)[1], loop.gradient(W, indices, views=views)[1]
    )
    assert_close(stacked.losses(W[0], 0, "train"), loop.losses(W[0], 0, "train"))


def test_a_private_image_counts_for_no_more_than_the_norm(tmp_path):
    """One patch an image: without one image the sum lacks one clipped term."""
    ready, norm = scenario(tmp_path), 0.05
    module, space = ready.network.trained()
    privacy = Privacy(
        delta=1e-5, noise_multiplier=1.0, max_grad_norm=norm, seed=1, acknowledge=("metrics",)
    )
    private = PrivateObjective(ready.objective(), module, space, privacy, tmp_path, chunk=4)
    index, row = ready.resident.rows["train"][0], ready.initial()
    _, total = private.clipped_sum(row, index, VIEW)
    for k in range(len(index)):
        remaining = torch.cat([index[:k], index[k + 1 :]])
        removed = total - private.clipped_sum(row, remaining, VIEW)[1]
        # the gradients are longer than the norm
        assert 0.9 * norm < removed.norm() <= norm * (1 + 1e-6)


def test_where_a_private_clients_patches_lie_is_secret_and_the_same_again(tmp_path):
    ready, gradients = scenario(tmp_path), []
    module, space = ready.network.trained()
    for folder, seed in (("a", 1), ("a", 1), ("b", 2)):
        privacy = Privacy(
            delta=1e-5, noise_multiplier=0.0, max_grad_norm=9.0, seed=seed, acknowledge=("metrics",)
        )
        private = PrivateObjective(ready.objective(), module, space, privacy, tmp_path / folder)
        training = LocalTraining(private, (0,), None, a_round(batch_size=100))
        gradients.append(training.gradient(ready.initial()[None], next(training.steps(1))[0])[1])
    assert torch.equal(gradients[0], gradients[1])
    # all samples, without noise, in either case: the patches differ
    assert not torch.allclose(gradients[0], gradients[2])


def test_evaluation_is_of_whole_images_and_losses_are_those_of_its_outputs(tmp_path):
    ready = scenario(tmp_path, size=(4, 4))
    module, space = ready.network.trained()
    objective, row = ready.objective(), ready.initial()
    uncut = TorchObjective(module, space, replace(ready.resident, patch=None), objective.criterion)
    ours, theirs = objective.outputs(row, 0, "validation"), uncut.outputs(row, 0, "validation")
    assert ours[0].shape == theirs[0].shape == (len(ours[1]), 3, 8, 8)
    assert_close(ours, theirs)  # a pixel's output follows from that pixel
    assert torch.equal(objective.losses(row, 0, "validation"), objective.criterion(*ours))


def test_statistics_are_those_of_one_patch_an_image(tmp_path):
    ready = scenario(tmp_path, size=(4, 4), model={"name": "masks:normalised"})
    objective, data, row = ready.objective(), ready.resident, ready.initial()
    index = data.rows["train"][1]
    module = ready.module()
    with torch.no_grad():
        activations = module[0](data.training_view(index, View(1, 0, 0, "statistics", 0))[0])
    statistics = objective.tensors(row, 1)
    assert_close(statistics["1.running_mean"], activations.mean((0, 2, 3)))
    assert_close(statistics["1.running_var"], activations.var((0, 2, 3)))
    augmented = replace(data, augment=("noise:5",))
    noisy = TorchObjective(ready.module(), objective.space, augmented, objective.criterion)
    assert_close(noisy.tensors(row, 1), statistics)


def test_features_of_whole_images_are_refused(tmp_path):
    ready = scenario(tmp_path)
    with pytest.raises(ConfigError, match="features of whole images"):
        ready.objective().features(ready.initial(), 0, "train")
