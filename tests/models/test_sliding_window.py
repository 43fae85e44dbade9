"""Windows over whole images: the output of each pixel, and refused patches."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from pomona.core import registry
from pomona.core.errors import ConfigError
from pomona.models import ModelSettings, build, segmentation
from pomona.models.segmentation import on_whole_images
from pomona.models.settings import PatchSettings

pytest.importorskip("monai")


def integers(shape, seed=0):
    return torch.randint(-9, 10, shape, generator=torch.Generator().manual_seed(seed)).float()


@pytest.mark.parametrize("overlap", [0.0, 0.25, 0.75])
@pytest.mark.parametrize(
    ("sides", "size"), [((11, 7), (4, 3)), ((5, 9), (5, 2)), ((6, 5, 7), (3, 5, 2))]
)
def test_what_sees_single_pixels_gives_the_same_through_any_windows(sides, size, overlap):
    """Small integers: sums of equal outputs and their means are exact in float32, so that the bits
    are the same.
    """
    network = (nn.Conv2d, nn.Conv3d)[len(sides) - 2](2, 3, 1)
    with torch.no_grad():
        for k, parameter in enumerate(network.parameters()):
            parameter.copy_(integers(parameter.shape, k))
        images = integers((3, 2, *sides))
        patch = PatchSettings(size=size, overlap=overlap)
        assert torch.equal(on_whole_images(network, patch)(images), network(images))
        soft = patch.model_copy(update={"blend": "gaussian"})
        assert_close(on_whole_images(network, soft)(images), network(images), atol=1e-4, rtol=1e-5)


def test_the_network_sees_windows_alone_and_few_at_a_time(monkeypatch):
    """Sides 10 and 7 in steps of 3 (overlap 1 of 4): windows begin at 0, 3, 6 and at 0, 3; of two
    images 12 in all.
    """
    monkeypatch.setattr(segmentation, "PIXELS_AT_ONCE", 5 * 16)
    shapes = []

    def network(windows):
        shapes.append(tuple(windows.shape))
        return windows.flip(-1)

    images = torch.arange(140.0).view(2, 1, 10, 7)
    stitched = on_whole_images(network, PatchSettings(size=(4, 4)))(images)
    assert [shape[0] for shape in shapes] == [5, 5, 2]
    assert {shape[1:] for shape in shapes} == {(1, 4, 4)}
    # A row's first three pixels lie in the window of columns 0 to 3 alone; the fourth is the mean
    # of both windows.
    row = images[0, 0, 0]
    assert stitched[0, 0, 0].tolist() == [
        row[3],
        row[2],
        row[1],
        (row[0] + row[6]) / 2,
        row[5],
        row[4],
        row[3],
    ]


def test_one_window_as_large_as_the_image_changes_no_bit():
    network = build(
        ModelSettings(name="unet", width=4, depth=1), (1, 8, 8), 3, seed=1, output_shape=(3, 8, 8)
    ).eval()
    images = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        assert torch.equal(
            on_whole_images(network, PatchSettings(size=(8, 8)))(images), network(images)
        )
    assert on_whole_images(network, None) is network


MASKS = "segmentation"


@pytest.mark.parametrize(
    ("size", "shape", "targets", "message"),
    [
        ((8, 8), (1, 16, 16), "classes", "patches are for masks, the targets are classes"),
        ((8, 8, 8), (1, 16, 16), MASKS, r"images have 2 sides, \(16, 16\)"),
        ((8, 8), (1, 16, 16, 16), MASKS, "images have 3 sides"),
        ((8, 17), (1, 16, 16), MASKS, r"a patch is larger than the images, \(16, 16\)"),
        ((1, 1), (1, 1024, 1024), MASKS, "1048576 windows to an image, at most 262144"),
    ],
)
def test_patches_that_do_not_fit_are_named(size, shape, targets, message):
    with pytest.raises(ValueError, match=message):
        raise ValueError(PatchSettings(size=size).misfit(shape, targets))


def test_patches_that_fit_are_not():
    assert PatchSettings(size=(8, 16)).misfit((3, 16, 16), MASKS) is None
    assert PatchSettings(size=(1, 1)).misfit((1, 512, 512), MASKS) is None  # 262144 windows


@pytest.mark.parametrize("size", [(8,), (8, 8, 8, 8), (0, 8), (8, -1), (8, 2.5)])
def test_sizes_are_two_or_three_whole_numbers(size):
    with pytest.raises(ValueError, match="size"):
        PatchSettings(size=size)


@pytest.mark.parametrize("overlap", [-0.1, 0.8, float("nan")])
def test_overlaps_have_bounds(overlap):
    with pytest.raises(ValueError, match="overlap"):
        PatchSettings(size=(8, 8), overlap=overlap)


@pytest.mark.parametrize(
    ("network", "size", "message"),
    [
        (
            {"name": "unet", "depth": 3},
            (16, 4),
            r"halves the sides 3 times, but a patch has shape \(1, 16, 4\)",
        ),
        (
            {"name": "monai:UNet", "args": {"channels": [4, 8, 16], "strides": [2, 2]}},
            (16, 10),
            r"fails on a sample of shape \(1, 16, 10\)",
        ),
    ],
)
def test_a_patch_that_a_network_cannot_halve_is_a_line(network, size, message):
    settings = ModelSettings(**network, patch={"size": size})
    with pytest.raises(ConfigError, match=message):
        build(settings, (1, 32, 32), 2, output_shape=(2, 32, 32))


def test_without_monai_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr(registry, "find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match=r"^model.patch needs monai; install Pomona with its extra monai$"
    ):
        on_whole_images(nn.Identity(), PatchSettings(size=(8, 8)))
