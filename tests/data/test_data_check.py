from dataclasses import replace

import numpy as np
import pytest

from pomona.core.errors import DataError
from pomona.data import Dataset, Owners, checked

IMAGE = Dataset(
    "it",
    "image",
    np.zeros((3, 4, 4, 1), np.uint8),
    np.array([0, 1, 1]),
    ("a", "b"),
    2,
    (127.5,),
    (127.5,),
)
TABLE = Dataset(
    "it",
    "table",
    np.zeros((3, 2), np.float32),
    np.zeros((3, 1), np.float32),
    (),
    3,
    (0.0, 1.0),
    (1.0, 2.0),
)
TEXT = Dataset(
    "it",
    "text",
    np.array([[1, 2], [3, 0], [4, 4]], np.int32),
    np.array([0, 1, 1]),
    ("a", "b"),
    3,
    vocabulary=5,
)
OWNED = replace(TABLE, owners=Owners(("n", "s"), np.array([0, 1, 1]), np.array([0, 1, 2], np.int8)))


@pytest.mark.parametrize("dataset", [IMAGE, TABLE, TEXT, OWNED])
def test_good_data_pass_unchanged(dataset):
    assert checked(dataset) is dataset


def _owners(**changes):
    return {"owners": replace(OWNED.owners, **changes)}


BAD = {
    "counts": (IMAGE, {"y": np.array([0, 1])}, "3 inputs but 2 labels"),
    "no training row": (IMAGE, {"n_train": 0}, "0 of 3 rows are for training"),
    "too many training rows": (IMAGE, {"n_train": 4}, "4 of 3 rows are for training"),
    "float image": (
        IMAGE,
        {"x": IMAGE.x / 255},
        "image data is uint8, uint16, int16 or float32 (N, H, W, C) or (N, D, H, W, C)",
    ),
    "flat image": (IMAGE, {"x": IMAGE.x[..., 0]}, "(N, H, W, C)"),
    "no pixel": (IMAGE, {"x": IMAGE.x[:, :0]}, "no empty axis"),
    "double table": (TABLE, {"x": TABLE.x.astype(float)}, "table data is float32 (N, F)"),
    "nan": (
        TABLE,
        {"x": np.array([[0, 0], [0, np.nan], [np.inf, 1]], np.float32)},
        "2 rows hold NaN, infinite or too large numbers, first row 1",
    ),
    "long token": (TEXT, {"x": TEXT.x.astype(np.int64)}, "text data is int32"),
    "token beyond": (
        TEXT,
        {"vocabulary": 4},
        "1 rows hold token numbers outside 0 to 3, first row 2",
    ),
    "negative token": (TEXT, {"x": TEXT.x - 1}, "first row 1"),
    "small labels": (IMAGE, {"y": IMAGE.y.astype(np.int32)}, "int64 (N,)"),
    "label beyond": (
        IMAGE,
        {"classes": ("a",)},
        "2 labels are not class numbers from 0 to 0, first 1 in row 1",
    ),
    "class twice": (IMAGE, {"classes": ("a", "a")}, "same name"),
    "flat targets": (TABLE, {"y": np.zeros(3, np.float32)}, "float32 (N, K)"),
    "nan target": (TABLE, {"y": np.full((3, 1), np.nan, np.float32)}, "y: 3 rows hold NaN"),
    "a flag of 2": (
        replace(TABLE, target_kind="multilabel"),
        {"y": np.array([[0], [1], [2]], np.float32)},
        "y: 1 rows hold flags other than 0 and 1, first row 2",
    ),
    "no target": (TABLE, {"y": np.zeros((3, 0), np.float32)}, "K at least 1"),
    "shift of another width": (TABLE, {"shift": (0.0, 1.0, 2.0)}, "each entry of the last axis"),
    "infinite scale": (TABLE, {"scale": (np.inf,)}, "finite"),
    "scale of nothing": (TABLE, {"scale": (1.0, 0.0)}, "positive"),
    "a column without a name": (TABLE, {"columns": ("a",)}, "2 columns, but the names 'a'"),
    "a column's name twice": (TABLE, {"columns": ("a", "a")}, "2 columns, but the names 'a', 'a'"),
    "names of targets beside classes": (IMAGE, {"labels": ("a",)}, "0 targets, but the names 'a'"),
    "a target without a name": (TABLE, {"labels": ("a", "b")}, "1 targets, but the names 'a', 'b'"),
    "a word too many": (
        TEXT,
        {"words": tuple("abcd")},
        "3 words, but the names 'a', 'b', 'c', 'd'",
    ),
    "owner twice": (OWNED, _owners(names=("n", "n")), "without a name of their own: 'n'"),
    "owner beyond": (OWNED, _owners(client=np.array([0, 1, 2])), "client of the owners: 1 labels"),
    "role beyond": (
        OWNED,
        _owners(role=np.array([0, 1, 3], np.int8)),
        "role of the owners: 1 labels",
    ),
    "too few owners": (OWNED, _owners(client=np.array([0, 1])), "not int64 (3,)"),
    "wide roles": (OWNED, _owners(role=np.array([0, 1, 2])), "not int8 (3,)"),
}


@pytest.mark.parametrize("case", BAD)
def test_broken_promises(case):
    dataset, changes, message = BAD[case]
    with pytest.raises(DataError) as caught:
        checked(replace(dataset, **changes))
    assert message in str(caught.value)
    assert str(caught.value).startswith("it: ")


def test_rows_are_counted_over_blocks():
    x = np.zeros((150_000, 1), np.float32)
    x[[70_000, 140_000]] = np.nan
    with pytest.raises(DataError, match=r"2 rows .* first row 70000;"):
        checked(Dataset("it", "table", x, np.zeros(len(x), np.int64), ("a",), len(x)))
