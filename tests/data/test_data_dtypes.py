"""8-bit, 16-bit and floating-point images and volumes, from custom arrays to a personal model and
its exports.
"""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn

import pomona
from pomona.config import resolve
from pomona.core.errors import ConfigError, DataError
from pomona.core.rng import stream
from pomona.data import Dataset, data_settings, read
from pomona.data.images import image_arrays
from pomona.data.validation import checked
from pomona.objective.dataset import DeviceDataset
from pomona.partition.partition import ClientRows, Partition
from pomona.personal import PersonalModel
from pomona.personal.export import export
from pomona.personal.inputs import read as read_inputs
from pomona.scenario import Scenario

RANGES = {
    "uint8": (0, 2**8),
    "uint16": (0, 2**16),
    "int16": (-(2**15), 2**15),
    "float32": (-1000, 1000),
}
SIZES = {
    "image": (5, 4, 3),
    "gray": (6, 4, 1),
    "volume": (3, 5, 4, 1),
    "volume of two channels": (2, 3, 4, 2),
}


def samples(n, size, dtype):
    """Values over the whole range of a dtype, including its ends."""
    low, high = RANGES[dtype]
    x = stream(1, "samples").integers(low, high, (n, *size)).astype(dtype)
    x.flat[:2] = low, high - 1
    return x


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("dtype", RANGES)
def test_what_a_network_sees_is_the_formula(dtype, size):
    """``(x - shift) / scale``, channels first, as NumPy computes it in float32."""
    x, y = samples(7, size, dtype), np.arange(7) % 2
    shift, scale = (tuple(k + s for k in range(size[-1])) for s in (0.5, 3.0))
    dataset = checked(Dataset("it", "image", x, y, ("a", "b"), 7, shift, scale))
    rows = ClientRows(np.arange(7), np.arange(0), np.arange(0))
    data = DeviceDataset.build(dataset, Partition((rows,), {}), "classes")
    index = [6, 0, 6, 3]
    inputs, truth = data.gather(torch.tensor(index))
    expected = (x[index].astype(np.float32) - np.float32(shift)) / np.float32(scale)
    assert inputs.dtype == torch.float32
    np.testing.assert_array_equal(inputs.numpy(), np.moveaxis(expected, -1, 1))
    assert truth.tolist() == y[index].tolist()


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (["u1"], "uint8"), (["i1"], "int16"), (["u1", "i1"], "int16"), ([">u2"], "uint16"), (["<i2", "u1"], "int16"),
        (["u2", "i2"], "float32"), (["f2"], "float32"), (["f8", "u1"], "float32"),
    ],
)  # fmt: skip
def test_the_first_dtype_that_holds_all_values(stored, expected):
    assert image_arrays.sample_type(map(np.dtype, stored)) == expected


@pytest.mark.parametrize(
    ("shape", "accepted"),
    [
        ((3, 8, 8), True), ((3, 8, 8, 1), True), ((3, 8, 8, 4), True), ((3, 8, 9, 7), True), ((3, 4, 8, 8, 1), True),
        ((3, 8, 8, 8), False), ((3, 3, 8, 8), False), ((3, 8), False), ((3,), False), ((3, 2, 2, 2, 2, 1), False),
    ],
)  # fmt: skip
def test_volumes_without_channels_are_not_taken_for_images(shape, accepted):
    refused = pytest.raises(DataError, match=r"volumes .* channels last")
    with nullcontext() if accepted else refused:
        image_arrays.require(shape, np.dtype(np.uint8), "x")


@pytest.mark.parametrize("dtype", RANGES)
def test_another_dtype_without_loss_or_not_at_all(dtype):
    x = samples(5, (3, 2, 1), dtype)
    assert image_arrays.as_type(x, dtype, "x") is x
    wide = image_arrays.as_type(x, "float32", "x")
    np.testing.assert_array_equal(image_arrays.as_type(wide, dtype, "x"), x)
    if dtype != "float32":
        with pytest.raises(DataError, match=f"x: row 3 is float32 and does not fit into {dtype}"):
            image_arrays.as_type(np.concatenate([wide[:3], wide[3:] + np.float32(0.5)]), dtype, "x")
    assert image_arrays.as_type(x[:0], "int16", "x").shape == (0, 3, 2, 1)


@pytest.mark.parametrize("dtype", RANGES)
def test_resizing_an_even_image_leaves_its_values(tmp_path, dtype):
    """Bilinear weights add up to one: where all pixels are equal they stay so, at the ends of the
    range too.
    """
    extremes = np.array([RANGES[dtype][0], RANGES[dtype][1] - 1]).astype(dtype)
    np.savez(tmp_path / "own.npz", x=np.broadcast_to(extremes[:, None, None], (2, 9, 6)), y=[0, 1])
    data = read(data_settings(name="arrays", path=tmp_path / "own.npz", resize=4))
    assert (data.x.shape, data.x.dtype) == ((2, 4, 4, 1), dtype)
    assert np.unique(data.x[0]).tolist() == [extremes[0]]
    assert np.unique(data.x[1]).tolist() == [extremes[1]]


def test_volumes_are_not_resized(tmp_path):
    np.savez(tmp_path / "own.npz", x=np.zeros((4, 4, 4, 4, 1), np.int16), y=[0, 1, 0, 1])
    with pytest.raises(ConfigError, match=r"data.resize is for images, and .* is volumes; drop it"):
        read(data_settings(name="arrays", path=tmp_path / "own.npz", resize=4))


def convolved(settings, input_shape, n_outputs, vocabulary):
    """A small network for volumes."""
    return nn.Sequential(
        nn.Conv3d(input_shape[0], 2, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool3d(2), nn.Flatten(),
        nn.Linear(16, n_outputs),
    )  # fmt: skip


def volumes(settings):
    """16-bit volumes with a bright or a dark centre."""
    x = stream(3, "volumes").integers(0, 2**16, (48, 4, 6, 5, 1)).astype(np.uint16) // 2
    y = np.arange(48) % 2
    x[y == 1, 1:3, 2:4, 1:4] += 2**15
    return Dataset("volumes", "image", x, y, ("dark", "bright"), 48, (32768.0,), (16384.0,))


@pytest.mark.parametrize("network", [f"{__name__}:convolved", "mlp"])
def test_a_run_on_volumes_and_its_models(tmp_path, network):
    tree = {
        "data": {"name": f"{__name__}:volumes"},
        "method": {"name": "fedavg-ft"},
        "model": {"name": network},
    }
    config = resolve({**tree, "clients": 3, "rounds": 2, "lr": 0.05, "workers": 1, "batch_size": 4})
    pomona.run(config, tmp_path / "run")
    path = next((tmp_path / "run" / "models").glob("client-00*.safetensors"))
    model = PersonalModel.load(path, own_code=True)
    metadata, x = model.about, volumes(None).x
    assert (metadata.dtype, metadata.input_shape, metadata.sample_shape) == (
        "uint16",
        (1, 4, 6, 5),
        (4, 6, 5, 1),
    )
    expected = model.module((torch.from_numpy(x.astype(np.float32)).movedim(-1, 1) - 32768) / 16384)
    torch.testing.assert_close(model.outputs(x), expected.detach())
    torch.testing.assert_close(model.outputs(x.astype(np.float32)), expected.detach())
    with pytest.raises(DataError, match="row 0 is float32 and does not fit into uint16"):
        model.outputs(x + np.float32(0.5))
    export(model, tmp_path / "m.pt2", "pt2")
    program = torch.export.load(tmp_path / "m.pt2").module()
    torch.testing.assert_close(program(torch.from_numpy(x[:7])), expected[:7].detach())
    for stored in (x, x.astype(np.float64)):  # whole numbers are these, however they are stored
        np.savez(tmp_path / "asked.npz", x=stored)
        np.testing.assert_array_equal(read_inputs(tmp_path / "asked.npz", metadata).x, x)
    np.savez(tmp_path / "asked.npz", x=x[..., 0])
    with pytest.raises(DataError, match=r"samples have shape \(4, 6, 5\)"):
        read_inputs(tmp_path / "asked.npz", metadata)


@pytest.mark.parametrize("name", ["cnn", "resnet18", "small"])
def test_networks_for_images_refuse_volumes(name):
    tree = {
        "data": {"name": f"{__name__}:volumes"},
        "method": {"name": "fedavg"},
        "model": {"name": name},
    }
    with pytest.raises(
        ConfigError, match=r"takes images, but a sample has shape \(1, 4, 6, 5\); take .*monai:NAME"
    ):
        Scenario.prepare(resolve({**tree, "clients": 3, "rounds": 1, "lr": 0.1}))


def test_a_network_of_monai_takes_volumes():
    pytest.importorskip("monai")
    model = {
        "name": "monai:DenseNet",
        "args": {"init_features": 4, "growth_rate": 2, "block_config": [1]},
    }
    tree = {"data": {"name": f"{__name__}:volumes"}, "method": {"name": "fedavg"}, "model": model}
    scenario = Scenario.prepare(resolve({**tree, "clients": 3, "rounds": 1, "lr": 0.1}))
    assert any(isinstance(layer, nn.Conv3d) for layer in scenario.module().modules())


@pytest.mark.parametrize(
    ("partition", "message"),
    [
        ({"name": "iid", "turn_groups": 3}, "only square images"),
        (
            {"name": "latent", "distributions": 2, "embedding": "network"},
            "holds volumes.*take 'pca'",
        ),
    ],
)
def test_partitions_that_need_images(partition, message):
    tree = {
        "data": {"name": f"{__name__}:volumes"},
        "method": {"name": "fedavg"},
        "partition": partition,
    }
    with pytest.raises(ConfigError, match=message):
        Scenario.prepare(
            resolve({**tree, "model": {"name": "mlp"}, "clients": 3, "rounds": 1, "lr": 0.1})
        )
