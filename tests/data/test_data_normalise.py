"""Normalisation of images: by the training rows of all clients, by given numbers, or as 8 bits
always were.
"""

import tracemalloc

import numpy as np
import pytest

import pomona
from pomona.config import resolve
from pomona.core.errors import ConfigError, DataError
from pomona.core.rng import stream
from pomona.data import Dataset, data_settings, read
from pomona.data.tables import tabular
from pomona.data.tables.tabular import moments
from pomona.personal import PersonalModel
from pomona.scenario import Scenario


@pytest.mark.parametrize("shape", [(9, 4, 3, 2), (7, 3, 4, 2, 1), (1, 5, 5, 3), (3, 1, 1, 1)])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "float32"])
@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_moments_of_channels_against_numpy(monkeypatch, shape, dtype, piece):
    """Whatever is computed at once, in double precision."""
    monkeypatch.setattr(tabular, "BLOCK_VALUES", piece)
    x = stream(2, "x").integers(0, 256, shape).astype(dtype)
    rows = np.arange(len(x))[::2]
    shift, scale = moments(x, rows)
    flat = x[rows].reshape(-1, shape[-1]).astype(float)
    np.testing.assert_allclose(shift, flat.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(
        scale, np.where(flat.std(axis=0) > 0, flat.std(axis=0), 1), rtol=1e-12
    )


def test_moments_take_no_memory_that_grows_with_the_images():
    """Twelve times the rows, and rows of twelve times the size: the same peak, but for what counts
    the rows.
    """

    def peak(shape):
        x = np.ones(shape, np.uint16)
        tracemalloc.start()
        moments(x, np.arange(len(x)))
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak_bytes

    small = peak((4, 128, 128, 32, 1))
    more_rows = peak((48, 128, 128, 32, 1))
    large = peak((4, 128, 128, 384, 1))
    assert max(more_rows, large) < 1.1 * small
    assert small < 40 * 2**20


def scans(settings):
    """Two channels of 16 bits; rows 40 to 47 are far from the others."""
    x = stream(4, "scans").integers(0, 2000, (48, 6, 6, 2)).astype(np.uint16)
    x[..., 1] += 5000
    x[40:] += 30000
    return Dataset("scans", "image", x, np.arange(48) % 2, ("a", "b"), 40)


TREE = {
    "data": {"name": f"{__name__}:scans"},
    "method": {"name": "fedavg-ft"},
    "model": {"name": "logistic"},
}
TREE |= {"clients": 2, "rounds": 1, "lr": 0.1, "workers": 1}


def test_training_rows_alone_teach(tmp_path):
    """Neither the official test rows nor those that a partition puts aside for validation count."""
    scenario = Scenario.prepare(resolve(TREE))
    rows = np.concatenate([c.train for c in scenario.partition.clients])
    assert len(rows) < 40
    assert (scenario.dataset.shift, scenario.dataset.scale) == moments(scans(None).x, rows)
    pomona.run(resolve(TREE), tmp_path / "run")
    metadata = PersonalModel.load(
        next((tmp_path / "run" / "models").glob("client-00*.safetensors"))
    ).about
    assert (metadata.shift, metadata.scale, metadata.dtype) == (
        scenario.dataset.shift,
        scenario.dataset.scale,
        "uint16",
    )


def scaling(name, **settings):
    data = read(data_settings(name=f"{__name__}:{name}", **settings))
    return data.shift, data.scale, data.learn is not None


def photographs(settings):
    return np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3), [0, 1]


def normalised(settings):
    return Dataset(
        "known", "image", scans(None).x, np.arange(48) % 2, ("a", "b"), 40, (1000.0,), (50.0,)
    )


def numbers(settings):
    return np.arange(12.0).reshape(4, 3), [0, 1, 0, 1]


def test_the_settings_say_what_is_seen():
    scales = {"shift": [1, 2], "scale": [0.5, 4]}
    learnt = moments(scans(None).x, np.arange(40))
    assert scaling("photographs") == ((127.5,), (127.5,), False)
    assert scaling("photographs", normalise="training") == (
        *moments(photographs(None)[0], np.arange(2)),
        True,
    )
    assert scaling("scans") == scaling("scans", normalise="training") == (*learnt, True)
    assert scaling("scans", normalise=scales) == ((1.0, 2.0), (0.5, 4.0), False)
    assert scaling("normalised") == ((1000.0,), (50.0,), False)
    assert scaling("normalised", normalise="training") == (*learnt, True)


def test_what_does_not_fit_is_said():
    with pytest.raises(DataError, match="shift and scale need one finite value, or one for each"):
        scaling("scans", normalise={"shift": [1, 2, 3], "scale": [1]})
    with pytest.raises(
        ConfigError, match=r"data.normalise is for images, and .*:numbers is a table; drop it"
    ):
        scaling("numbers", normalise="training")
    for value in (
        {"shift": [0], "scale": [0]},
        {"shift": [float("nan")], "scale": [1]},
        {"shift": [1]},
        "mean",
    ):
        with pytest.raises(ConfigError, match=r"data.normalise"):
            resolve({**TREE, "data": {**TREE["data"], "normalise": value}})


def test_moments_of_training_rows_are_a_release_under_privacy():
    accepted = ["sample-counts", "metrics", "class-names", "training-loss", "unlimited-epsilon"]
    private = {"noise_multiplier": 1, "max_grad_norm": 1, "delta": 1e-3, "acknowledge": accepted}
    with pytest.raises(ConfigError, match=r"not covered by privacy: feature-moments"):
        Scenario.prepare(resolve({**TREE, "privacy": private}))
    data = {**TREE["data"], "normalise": {"shift": [0], "scale": [1000]}}
    assert (
        Scenario.prepare(resolve({**TREE, "privacy": private, "data": data})).dataset.learn is None
    )
