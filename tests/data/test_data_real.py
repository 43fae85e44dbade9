"""The real files, if POMONA_DATA names a folder that contains them."""

import hashlib
import os

import numpy as np
import pytest

from pomona.data import data_settings, describe, read

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif("POMONA_DATA" not in os.environ, reason="POMONA_DATA names no data folder"),
]


def load(name):
    line = next(line for line in describe() if line.name == name)
    if not line.present:
        pytest.skip(f"{name} is not there: {line.where}")
    return read(data_settings(name=name))


def sha256(array):
    return hashlib.sha256(np.ascontiguousarray(array)).hexdigest()


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_idx(name):
    data = load(name)
    assert (data.x.shape, data.n_train) == ((70000, 28, 28, 1), 60000)
    counts = np.bincount(data.y[60000:], minlength=10)
    assert counts.sum() == 10000
    if name == "mnist":  # the first labels and the class counts of the test set are well known
        assert data.y[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
        assert counts.tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
        assert data.x[:60000].mean() / 255 == pytest.approx(0.1307, abs=5e-5)
    else:
        assert counts.tolist() == [1000] * 10
        assert data.x[:60000].mean() / 255 == pytest.approx(0.2860, abs=5e-5)


# SHA-256 of the arrays as a separate, slower decoder gave them: x_train, x_test, y_train, y_test.
CIFAR = {
    "cifar10": (
        "ff7f60d2696c4304c0d820eb732bc21fbd38c69122372c42aeb4ef8569a4dd60",
        "1249626010949d8f448e0faf792debbc3da0c50ed31bfff3678c99c37fbc7e48",
        "f5cfe00b0f00968c0cc5ff3b1d2de51b10e33efa277c2986f4e0fa63e58c9f4f",
        "cbb7365de8ed11f05cc4c3a1e7f78144127c5e851efd83762fb18202461230bb",
    ),
    "cifar100": (
        "1c0fcd3cdd4aa5db2200a60c779daec315cd93923464b84a22db463719069421",
        "8532fd42ce092c665328a7201998ab7e8768dad37afff89be94e13106523a495",
        "5595b090f5c4dd435a041e8aeefc6069b8cba03ae98444e59235fb6af32d6796",
        "840edb0b5a16e138e5af7a0da1306e00c737617170f8f50e6c8a97f901f72838",
    ),
}


@pytest.mark.parametrize("name", CIFAR)
def test_cifar(name):
    data = load(name)
    if "(" not in data.name:
        pytest.skip("the official files are there, not the compact archive these hashes are of")
    n = data.n_train
    assert (
        sha256(data.x[:n]),
        sha256(data.x[n:]),
        sha256(data.y[:n]),
        sha256(data.y[n:]),
    ) == CIFAR[name]
    if name == "cifar100":
        assert data.name == "cifar100 (subset: 10000 of 50000 training rows)"


def test_ag_news():
    data = load("ag-news")
    if data.name == "ag-news":
        assert (data.n_train, len(data)) == (120_000, 127_600)
    else:
        assert (data.n_train, len(data)) == (6080, 7600)
        assert np.bincount(data.y[:6080]).tolist() == [1520] * 4
        assert np.bincount(data.y[6080:]).tolist() == [380] * 4
    assert (data.x[:, 0] > 0).all()
    assert data.x.max() == data.vocabulary - 1
