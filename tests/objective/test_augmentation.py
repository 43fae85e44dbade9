"""Augmentation: each transform by its definition, and independent views for each sample."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

import pomona
from pomona.core.errors import ConfigError
from pomona.models import ModelSettings
from pomona.models.parameter_space import ParameterSpace
from pomona.objective import augmentation
from pomona.objective.augmentation import TRANSFORMS, augment, parse
from pomona.objective.batches import View
from pomona.objective.dataset import DeviceDataset
from pomona.objective.private import PrivateObjective
from pomona.objective.pytorch import TorchObjective
from pomona.objective.stacked import StackedObjective
from pomona.objective.training import LocalTraining
from pomona.privacy.settings import Privacy
from pomona.scenario import Scenario
from pomona.tasks import TASKS
from pomona.tasks.criterion import criterion
from problems import a_round, tiny
from representatives import representatives

ALL_TRANSFORMS = ("flip", "flip-vertical", "crop:2", "rotate", "brightness", "contrast", "noise")
FLAT, SOLID = (5, 2, 6, 7), (5, 1, 4, 6, 7)


def batch(shape, classes=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    masks = torch.randint(0, classes, (shape[0], *shape[2:]), generator=generator)
    return torch.randn(shape, generator=generator), masks


def draws(n, round_=1):
    return [View(0, 7, round_, "training", 3).generator(position) for position in range(n)]


@pytest.mark.parametrize("shape", [FLAT, SOLID, (1, 1, 1, 1), (0, 3, 4, 4)])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_of_strength_0_nothing_changes(name, shape):
    if len(shape) > 4 and not TRANSFORMS[name].volumes:
        pytest.skip("for flat images")
    x, y = batch(shape)
    augmented, masks = augment([f"{name}:0"], x, y, draws(len(x)))
    assert_close(augmented, x, atol=1e-5, rtol=1e-5)
    assert torch.equal(masks, y)


@pytest.mark.parametrize("shape", [FLAT, SOLID])
@pytest.mark.parametrize(("name", "axis"), [("flip", -1), ("flip-vertical", -2)])
def test_a_flip_mirrors_images_and_masks_and_two_are_none(name, axis, shape):
    x, y = batch(shape)
    augmented, masks = augment([f"{name}:1"], x, y, draws(len(x)))
    assert torch.equal(augmented, x.flip(axis))
    assert torch.equal(masks, y.flip(axis))
    assert torch.equal(augment([f"{name}:1"], augmented, masks, draws(len(x)))[0], x)


def test_a_flip_takes_its_chance_for_each_sample():
    x, y = batch((400, 1, 1, 2))
    augmented, _ = augment(["flip:0.25"], x, y, draws(400))
    unflipped = (augmented == x).flatten(1).all(1).sum()
    assert torch.equal(augmented.sort(-1).values, x.sort(-1).values)
    assert abs(int(unflipped) - 300) < 4 * math.sqrt(400 * 0.25 * 0.75)


@pytest.mark.parametrize("shape", [FLAT, SOLID])
@given(seed=st.integers(0, 50))
def test_moves_keep_the_counts_of_a_masks_classes_where_nothing_comes_from_outside(shape, seed):
    x, y = batch(shape, seed=seed)
    _, masks = augment(["flip", "flip-vertical"], x, y, draws(len(x), seed))
    assert torch.equal(masks.flatten(1).sort(1).values, y.flatten(1).sort(1).values)


@pytest.mark.parametrize("shape", [FLAT, SOLID, (3, 1, 1, 5)])
@pytest.mark.parametrize("size", ["3", "0.3"])
def test_a_crop_is_a_window_of_the_mirrored_image(shape, size):
    """NumPy's reflecting pad is the reference; the shifts are read off the same streams."""
    x, y = batch(shape)
    augmented, masks = augment([f"crop:{size}"], x, y, draws(len(x)))
    shifts = set()
    for k, draw in enumerate(draws(len(x))):
        sides = shape[2:]
        reach = [round(float(size) * n) if float(size) < 1 else int(size) for n in sides]
        shift = [int(draw.integers(-r, r + 1)) for r in reach]
        shifts.add(tuple(shift))
        window = tuple(slice(r + s, r + s + n) for r, s, n in zip(reach, shift, sides, strict=True))
        outside = [(r, r) for r in reach]
        assert np.array_equal(augmented[k, 0], np.pad(x[k, 0], outside, "reflect")[window])
        assert np.array_equal(masks[k], np.pad(y[k], outside, "reflect")[window])
    assert len(shifts) > 1


class Fixed:
    """A generator whose uniform numbers are the upper end."""

    def uniform(self, low, high):
        return high


def test_a_rotation_turns_by_its_angle_whatever_the_sides():
    x, y = batch((2, 3, 8, 8))
    augmented, masks = augment(["rotate:90"], x, y, [Fixed(), Fixed()])
    assert_close(augmented, x.rot90(1, (2, 3)), atol=1e-5, rtol=1e-5)
    assert torch.equal(masks, y.rot90(1, (1, 2)))
    x, y = batch((2, 3, 4, 9))
    augmented, masks = augment(["rotate:180"], x, y, [Fixed(), Fixed()])
    assert_close(augmented, x.flip(2, 3), atol=1e-5, rtol=1e-5)
    assert torch.equal(masks, y.flip(1, 2))
    point = torch.zeros(1, 1, 9, 31)
    point[0, 0, 4, 19] = (
        # 4 to the right of the centre: 4 above it after a quarter turn, in pixels and not in shares
        1
    )
    augmented, _ = augment(["rotate:90"], point, torch.zeros(1), [Fixed()])
    assert_close(augmented[0, 0, 0, 15], torch.tensor(1.0), atol=1e-4, rtol=0)


def test_masks_have_no_classes_between_theirs():
    x, y = batch((20, 1, 9, 11))
    y = y * 100
    _, masks = augment(["rotate:45", "crop"], x, y, draws(20))
    assert set(masks.unique().tolist()) <= {0, 100, 200, 300}
    assert masks.dtype == y.dtype
    assert not torch.equal(masks, y)


def test_brightness_contrast_and_noise_by_their_definitions():
    x, y = batch((50, 2, 6, 7))
    shift = augment(["brightness:0.3"], x, y, draws(50))[0] - x
    assert_close(shift, shift[:, :1, :1, :1].expand_as(x), atol=1e-6, rtol=0)
    assert 0.2 < shift.abs().max() <= 0.3
    augmented = augment(["contrast:0.3"], x, y, draws(50))[0]
    mean = x.mean((1, 2, 3), keepdim=True)
    factor = (augmented - mean).flatten(1).norm(dim=1) / (x - mean).flatten(1).norm(dim=1)
    assert_close(augmented - mean, (x - mean) * factor.view(-1, 1, 1, 1), atol=1e-5, rtol=1e-5)
    assert 0.7 <= factor.min() < 0.8 < 1.2 < factor.max() <= 1.3
    added = augment(["noise:0.5"], x, y, draws(50))[0] - x
    assert abs(added.std() - 0.5) < 0.02
    assert abs(added.mean()) < 0.03


@pytest.mark.parametrize("targets", [torch.arange(5), torch.rand(5, 3)])
def test_targets_that_are_no_masks_stay(targets):
    x, _ = batch(FLAT)
    assert augment(ALL_TRANSFORMS, x, targets, draws(5))[1] is targets


@pytest.mark.parametrize(
    "text", ["flop", "crop:", "crop:-1", "crop:nan", "flip:2", "noise:inf", "crop:four", "", ":"]
)
def test_an_unknown_change_is_refused_in_a_line(text):
    with pytest.raises(ValueError, match=r"^[^\n]+$"):
        parse(text)
    with pytest.raises(ConfigError, match="augment"):
        pomona.Config(augment=[text])


def test_tables_texts_and_turned_volumes_are_refused():
    for content in ("table", "text"):
        with pytest.raises(ConfigError, match=f"is for images, the data are of kind {content}"):
            augmentation.require(("flip",), content, 1)
    with pytest.raises(ConfigError, match="rotate:5 is for flat images"):
        augmentation.require(("flip", "rotate:5"), "image", 4)
    augmentation.require(("flip", "crop"), "image", 4)
    augmentation.require((), "text", 1)


# The objectives.


def resident(augment=ALL_TRANSFORMS, n=24):
    images = torch.randint(
        0, 256, (n, 8, 8, 1), generator=torch.Generator().manual_seed(1), dtype=torch.uint8
    )
    rows = [torch.arange(n - 1, n // 2 - 1, -1), torch.arange(n // 2)]  # one client's rows descend
    splits = dict.fromkeys(("train", "validation", "test"), rows)
    moments = torch.tensor([127.5]), torch.tensor([70.0])
    return DeviceDataset(
        images, torch.arange(n) % 4, *moments, splits, "classes", augment=tuple(augment)
    )


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 4))


def built(engine=TorchObjective, data=None):
    module = network()
    space = ParameterSpace(module)
    objective = engine(
        module, space, data or resident(), criterion(ModelSettings(), TASKS["classes"])
    )
    return objective, space.pack(module)


def views(step=0, round_=1):
    return [View(c, 0, round_, "training", step) for c in (0, 1)]


def test_a_samples_view_does_not_depend_on_who_is_beside_it():
    data = resident()
    index = data.rows["train"][0]
    all_views, _ = data.training_view(index, views()[0])
    for subset in (index[3:5], index[[7]], index.flip(0)):
        positions = [index.tolist().index(i) for i in subset.tolist()]
        assert torch.equal(data.training_view(subset, views()[0])[0], all_views[positions])
    for other_view in (
        views(1)[0],
        views(0, 2)[0],
        View(0, 1, 1, "training", 0),
        View(0, 0, 1, "ala", 0),
    ):
        assert not torch.equal(data.training_view(index, other_view)[0], all_views)


def test_engines_see_the_same_views_and_evaluation_sees_the_samples():
    loop, row = built()
    stacked, _ = built(StackedObjective)
    indices = [loop.data.rows["train"][0][:9], loop.data.rows["train"][1][:5]]
    W = torch.stack([row, row * 0.9])
    in_loop, in_stack = (o.gradient(W, indices, views=views()) for o in (loop, stacked))
    assert_close(in_loop, in_stack)
    assert not torch.allclose(loop.gradient(W, indices)[0], in_loop[0])
    bare, _ = built(data=resident(()))
    assert torch.equal(bare.gradient(W, indices)[1], loop.gradient(W, indices)[1])
    for quantity in ("outputs", "features", "losses"):
        ours, plain = (getattr(o, quantity)(row, 0, "train") for o in (loop, bare))
        assert_close(ours, plain, atol=0, rtol=0)


def test_two_passes_over_one_batch_see_the_same():
    objective, row = built()
    training = LocalTraining(objective, (0, 1), None, a_round(batch_size=4))
    batches = [batch for (batch,) in training.steps(1)]
    W = row.repeat(2, 1)
    first, second = (training.gradient(W, batches[0]) for _ in range(2))
    assert torch.equal(first[1], second[1])
    repeated = next(training.steps(1))[0]
    assert torch.equal(training.gradient(W, repeated)[1], first[1])
    z = torch.randn(2, len(row), generator=torch.Generator().manual_seed(2))
    assert torch.equal(training.hessian(W, batches[0], z), training.hessian(W, batches[0], z))


def test_a_private_sample_moves_the_sum_by_at_most_the_norm(tmp_path):
    """One view a sample, which does not depend on the others of a batch: leaving one out takes one
    clipped term away.
    """
    inner, row = built()
    module = network()
    settings = Privacy(
        delta=1e-5, noise_multiplier=1.0, max_grad_norm=0.3, seed=1, acknowledge=("metrics",)
    )
    objective = PrivateObjective(inner, module, ParameterSpace(module), settings, tmp_path, chunk=4)
    index, view = inner.data.rows["train"][0], views()[0]
    _, total = objective.clipped_sum(row, index, view)
    assert not torch.allclose(total, objective.clipped_sum(row, index)[1])
    for k in range(len(index)):
        remaining = torch.cat([index[:k], index[k + 1 :]])
        removed = total - objective.clipped_sum(row, remaining, view)[1]
        assert removed.norm() <= 0.3 * (1 + 1e-6)
        assert_close(
            removed, objective.clipped_sum(row, index[k : k + 1], view)[1], atol=1e-8, rtol=1e-6
        )


def test_what_a_private_client_draws_is_secret_and_the_same_again(tmp_path):
    settings = Privacy(
        delta=1e-5, noise_multiplier=0.0, max_grad_norm=9.0, seed=1, acknowledge=("metrics",)
    )
    G = []
    for folder, seed in (("a", 1), ("a", 1), ("b", 2)):
        inner, row = built()
        module, terms = network(), settings.model_copy(update={"seed": seed})
        objective = PrivateObjective(
            inner, module, ParameterSpace(module), terms, tmp_path / folder
        )
        training = LocalTraining(objective, (0,), None, a_round(batch_size=100))
        G.append(training.gradient(row[None], next(training.steps(1))[0])[1])
    assert torch.equal(G[0], G[1])
    assert not torch.allclose(G[0], G[2])  # all samples in either case: the views differ


# Runs.

RUN = {"model": "small", "rounds": 3, "augment": ["flip", "crop", "rotate", "noise"]}


def outcome(result):
    return [(e.round, e.key, e.loss, e.accuracy) for e in result.evaluations], [
        r.loss for r in result.rounds
    ]


@pytest.mark.long
@pytest.mark.parametrize("method", representatives(["fedavg", "apfl"], ["fedavg"]))
def test_workers_and_a_resumed_run_give_the_same(tmp_path, method):
    serial, parallel = (pomona.run(tiny(method, workers=w, **RUN)) for w in (1, 2))
    assert outcome(serial) == outcome(parallel)
    pomona.run(tiny(method, **{**RUN, "rounds": 2}), tmp_path / "run")
    longer = pomona.run(tiny(method, **RUN), tmp_path / "run", resume=True)
    assert outcome(longer) == outcome(serial)
    plain = pomona.run(tiny(method, **{**RUN, "augment": []}))
    assert outcome(plain)[1] != outcome(serial)[1]
    untrained = [[(e.key, e.loss) for e in r.evaluations if e.round == 0] for r in (serial, plain)]
    assert untrained[0] == untrained[1]


def test_features_are_not_kept_of_samples_that_change():
    settings = {"model": {"name": "small", "train": "head"}}
    unchanged, changed = (
        Scenario.prepare(tiny("fedavg", **settings, augment=a)) for a in ([], ["flip"])
    )
    assert unchanged.network.keeps_features
    assert not changed.network.keeps_features
    assert changed.resident.x.dtype == torch.uint8
