"""Numbers at and between all limits of the code, at every entrance for measurements: taken exactly
up to one limit, or refused in one line by it.
"""

import math
from itertools import pairwise

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from data.image_files import write_nifti
from personal.crafted import good
from pomona.core import bounds, settings
from pomona.core.errors import DataError
from pomona.data import data_settings, from_arrays, from_frame, read
from pomona.personal import PersonalModel

FLOAT32 = np.finfo(np.float32)
LIMITS = sorted(
    {
        1.0, bounds.LARGEST, settings.LARGEST, bounds.HUGE, float(FLOAT32.max), float(FLOAT32.tiny),
        5e-324, float(np.finfo(float).max), 2.0**24, 2.0**31, 2.0**53, 2.0**63, 2.0**64, 65504.0,
    }
)  # fmt: skip


def around():
    """0, each limit and the next numbers to it, one between any two, of both signs."""
    sizes = {0.0}
    for limit in LIMITS:
        sizes |= {limit, math.nextafter(limit, 0), math.nextafter(limit, math.inf)}
    sizes |= {math.exp((math.log(a) + math.log(b)) / 2) for a, b in pairwise(LIMITS)}
    finite = sorted(size for size in sizes if math.isfinite(size))
    return [-size for size in reversed(finite)] + finite + [math.inf, -math.inf]


VALUES = around()
ROWS = 6
LABELS = [0, 1] * (ROWS // 2)


def csv(folder, value):
    lines = [f"{i}.5,{y}" for i, y in enumerate(LABELS)]
    lines[2] = f"{value!r},0"
    (folder / "a.csv").write_text("\n".join(["age,y", *lines]))
    return data_settings(name="table", path=folder / "a.csv", label_column="y")


def column(value):
    return [i + 0.5 if i != 2 else value for i in range(ROWS)]


def frame(value):
    return pd.DataFrame({"age": column(value), "y": LABELS})


def parquet(folder, value):
    frame(value).to_parquet(folder / "a.parquet")
    return data_settings(name="table", path=folder / "a.parquet", label_column="y")


def npz(folder, value):
    np.savez(folder / "a.npz", x=np.array(column(value))[:, None], y=LABELS)
    return data_settings(name="arrays", path=folder / "a.npz")


def csv_target(folder, value):
    lines = [f"{i},{number!r}" for i, number in enumerate(column(value))]
    (folder / "a.csv").write_text("\n".join(["age,dose", *lines]))
    return data_settings(
        name="table", path=folder / "a.csv", label_column="dose", targets="regression"
    )


def npz_target(folder, value):
    np.savez(folder / "a.npz", x=np.ones((ROWS, 1)), y=np.array(column(value))[:, None])
    return data_settings(name="arrays", path=folder / "a.npz", targets="regression")


def nifti(folder, value):
    for i, y in enumerate(LABELS):
        volume = np.full((3, 3, 3), i + 0.5)
        volume[1, 1, 1] = value if i == 2 else 0.25
        write_nifti(folder / "images" / "ab"[y] / f"{i}.nii", volume)
    return data_settings(name="images", path=folder / "images")


ENTRANCES = {
    "CSV": csv,
    "Parquet": parquet,
    "npz": npz,
    "pandas": lambda _, value: from_frame(frame(value), label_column="y"),
    "polars": lambda _, value: from_frame(pl.from_pandas(frame(value)), label_column="y"),
    "Arrow": lambda _, value: from_frame(pa.Table.from_pandas(frame(value)), label_column="y"),
    "array": lambda _, value: from_arrays(np.array(column(value))[:, None], LABELS),
    "target in CSV": csv_target,
    "target in npz": npz_target,
    "target in memory": lambda _, value: from_arrays(
        np.ones((ROWS, 1)), np.array(column(value)), targets="regression"
    ),
}


def stored_as(value):
    """A number as float32, to which a target is rounded before it is compared with the limit."""
    with np.errstate(over="ignore"):
        return float(np.float32(value))


def judged(name, folder, value):
    """Whether a value is taken; if it is, what became of it."""
    try:
        data = read(ENTRANCES[name](folder, value))
    except DataError:
        return None
    return float(np.asarray(data.y if "target" in name else data.x, np.float64).reshape(-1)[2])


@pytest.mark.long
@pytest.mark.parametrize("name", ENTRANCES)
def test_one_limit_holds_at_every_entrance(name, tmp_path):
    for value in VALUES:
        accepted = judged(name, tmp_path, value)
        stored = stored_as(value)
        if abs(stored) > bounds.LARGEST or (abs(value) > bounds.LARGEST and accepted is None):
            assert accepted is None, (value, accepted)
        else:
            assert accepted in {value, stored}, (value, accepted)


@pytest.mark.long
def test_it_holds_for_values_of_images(tmp_path):
    for value in (
        bounds.LARGEST,
        np.nextafter(np.float32(bounds.LARGEST), np.float32(np.inf)),
        1e25,
        3e38,
    ):
        with np.errstate(over="ignore"):
            write = nifti(tmp_path, float(value))
        if value > bounds.LARGEST:
            with pytest.raises(DataError):
                read(write)
        else:
            assert np.isfinite(read(write).x).all()


@pytest.mark.long
def test_it_holds_for_what_a_model_is_asked(tmp_path):
    model = PersonalModel.load(good(tmp_path / "model.safetensors"))
    for value in VALUES:
        for rows in (
            np.array([[value, 5.0], [-1.0, 40.0]]),
            pd.DataFrame({"age": [value], "dose": [5.0]}),
        ):
            try:
                answers = model.predict(rows)
            except DataError:
                answers = None
            assert (answers is not None) == (abs(value) <= bounds.LARGEST), value
            assert all(math.isfinite(p) for a in answers or () for p in a.get("probabilities", {}).values())  # fmt: skip
