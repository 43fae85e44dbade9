"""``PersonalModel.predict`` takes every form that training takes, with the same answers."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

import pomona
from pomona.core.errors import DataError, PomonaWarning
from pomona.data import from_arrays
from pomona.personal import PersonalModel

DRAW = np.random.default_rng(3)
RUN = {"method": "separate", "rounds": 1, "lr": 0.1, "workers": 1}
X = DRAW.normal(size=(40, 3)).astype(np.float32).astype(float)  # exact in both
FRAME = pd.DataFrame(X, columns=["a", "b", "c"])
Y = np.arange(40) % 2


def model(x, **settings):
    """The model of one client."""
    run = pomona.run(data=from_arrays(x, Y, ["s"] * 40, **settings), model="logistic", **RUN)
    return PersonalModel.of(run, "s")


MODEL = model(FRAME)


@pytest.mark.parametrize(
    "rows",
    [
        X,
        X.astype(np.float32),
        X.tolist(),
        torch.from_numpy(X),
        torch.from_numpy(X).float().requires_grad_(),
        FRAME,
        FRAME[["c", "a", "b"]].set_axis(range(40)[::-1]),
        pl.from_pandas(FRAME[["b", "c", "a"]]),
        pa.Table.from_pandas(FRAME[["c", "b", "a"]]),
        FRAME.astype("Float64"),
    ],
    ids=lambda rows: type(rows).__name__,
)
def test_a_table_in_every_form_has_the_same_answers(rows):
    assert MODEL.predict(rows) == MODEL.predict(X)
    assert torch.equal(MODEL.outputs(rows), MODEL.outputs(X))


ROWS = torch.from_numpy(X)


@pytest.mark.parametrize(
    "rows",
    [
        {"x": X, "weight": Y},
        {"image": ROWS},
        [{"features": row, "label": 1} for row in X],
        TensorDataset(ROWS, torch.from_numpy(Y)),
        TensorDataset(ROWS),
        Subset(TensorDataset(ROWS), range(40)),
    ],
    ids=lambda rows: type(rows).__name__,
)
def test_dictionaries_and_data_sets_have_the_same_answers(rows):
    assert MODEL.predict(rows) == MODEL.predict(X)


def test_whole_numbers_are_numbers():
    assert MODEL.predict(np.eye(3, dtype=int)) == MODEL.predict(np.eye(3))
    assert MODEL.predict(X[:0]) == []


@pytest.mark.parametrize(
    ("rows", "messages"),
    [
        (X[0], ["(3,)", "one row for each sample"]),
        (X[:, :2], ["(2,)", "(3,)"]),
        (FRAME.rename(columns={"b": "B"}), ["missing b", "unknown B"]),
        ([[1, 2, "x"]], ["x is <U"]),
        (None, ["NoneType"]),
        (X.astype(complex), ["complex128"]),
        (np.full((1, 3), np.nan), ["NaN"]),
        ({"a": X[0], "b": X[1]}, ["keys a, b", "frame"]),
        ({"x": X, "image": X}, ["keys x, image"]),
        (DataLoader(TensorDataset(torch.from_numpy(X))), ["DataLoader"]),
    ],
)
def test_rows_that_do_not_fit_are_refused_in_a_line(rows, messages):
    with pytest.raises(DataError) as fault:
        MODEL.predict(rows)
    assert all(message in str(fault.value) for message in messages), str(fault.value)


def test_a_frame_for_a_model_without_names_is_taken_in_order_with_a_warning():
    nameless = model(X)
    with pytest.warns(PomonaWarning, match="in the order of the training"):
        answers = nameless.predict(FRAME)
    assert answers == nameless.predict(X)


def test_large_numbers_are_taken_as_in_training_or_refused():
    """Of values near 1e9 a float32 keeps steps of 64."""
    x = X + np.array([1e9, 0, 0])
    large = model(x)
    shifted = x - np.array(large.about.preprocessing.offsets)
    assert abs(shifted).max() < 10
    expected = large.predict(shifted.astype(np.float32))  # as in the data set
    assert large.predict(x) == large.predict(pd.DataFrame(x)[[0, 1, 2]].to_numpy()) == expected
    with pytest.raises(DataError, match=r"float32.*column 0.*float64"):
        large.predict(x.astype(np.float32))


def test_images_of_pytorch_are_turned_with_a_warning():
    images = DRAW.integers(0, 255, (40, 6, 7, 3), np.uint8)
    net = model(images)
    first = torch.from_numpy(np.moveaxis(images, -1, 1).copy())
    with pytest.warns(PomonaWarning, match="channels in axis 1"):
        answers = net.predict(first)
    assert answers == net.predict(images) == net.predict(images.astype(np.float32))
