"""Numbers with small differences for their size: subtraction in double precision before conversion
to float32.
"""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pomona.core.errors import DataError
from pomona.data import cell_values, data_settings, from_arrays, read
from pomona.data.formats.columns import Columns
from pomona.data.preprocessing import TableColumn
from pomona.data.tables import cells, tabular
from pomona.data.tables.source import TableSource
from pomona.personal import inputs
from pomona.record.model_metadata import ModelMetadata
from pomona_federation.survey.raw_data import read_raw

DRAW = np.random.Generator(np.random.Philox(4))
SMALL = DRAW.normal(size=80)  # float32 has steps of 64 at 1e9
ROWS = np.arange(80)


def lines(numbers, *more_lines):
    cells = ["" if np.isnan(number) else repr(float(number)) for number in numbers]
    return "\n".join(
        ["t,age,died", *(f"{c},{k % 7},{k % 2}" for k, c in enumerate(cells)), *more_lines, ""]
    )


def table(path, text, **settings):
    path.write_text(text)
    return read(
        data_settings(**{"name": "table", "path": path, "label_column": "died", **settings})
    )


def scaled(data, rows=ROWS):
    """A network's input from the first column."""
    learnt = data.learn(data, rows)
    inputs = (learnt.x - np.array(learnt.shift, np.float32)) / np.array(learnt.scale, np.float32)
    return inputs[:, 0], learnt


@pytest.mark.parametrize(
    ("base", "spread"), [(1e9, 1.0), (1.7e9, 3600.0), (1e8, 20.0), (-1e12, 300.0), (98.6, 1e-4)]
)
def test_what_a_large_number_differs_in_is_seen(tmp_path, base, spread):
    large = base + spread * SMALL
    x, learnt = scaled(table(tmp_path / "a.csv", lines(large)))
    np.testing.assert_allclose(x, (large - large.mean()) / large.std(), atol=1e-5)
    assert learnt.x.dtype == np.float32
    assert learnt.preprocessing[0].offsets == (np.median(large), 0.0)
    assert any(
        note.startswith("numbers too close to each other for float32, read less their median: t (")
        for note in learnt.notes
    )


def test_gaps_of_large_numbers_become_their_median(tmp_path):
    large = 1e9 + SMALL
    large[3] = np.nan
    x, learnt = scaled(table(tmp_path / "a.csv", lines(large), missing="median"))
    assert learnt.preprocessing[0].columns[0].fill == pytest.approx(np.nanmedian(large), abs=1e-6)
    assert x[3] == pytest.approx(
        (np.nanmedian(SMALL) - np.delete(SMALL, 3).mean()) / SMALL.std(), abs=0.05
    )


@pytest.mark.parametrize(
    "numbers",
    [
        SMALL,
        2000 + SMALL,  # years
        1e9 + 1e6 * SMALL,
        np.full(80, 1e9 + 1 / 3),
        np.where(ROWS % 2, 0.1 + 0.2, 0.3),  # differ by a rounding of float64
        1e7 + (ROWS % 5.0),  # float32 holds these
    ],
)
def test_any_other_column_has_the_bytes_that_float32_has(tmp_path, numbers):
    data = table(tmp_path / "a.csv", lines(numbers))
    learnt = data.learn(data, ROWS)
    for dataset in (data, learnt):
        assert dataset.x[:, 0].tobytes() == numbers.astype(np.float32).tobytes()
        assert dataset.preprocessing == ()
    assert learnt.raw is None


def test_the_rows_that_are_learned_from_decide_whether_there_is_an_offset(tmp_path):
    """Half of the rows need one, all together none, and half need it again."""
    large = np.where(ROWS < 40, 1e9 + SMALL, 1e12 * SMALL)
    data = table(tmp_path / "a.csv", lines(large))
    assert data.preprocessing == ()
    assert data.learn(data, ROWS[40:]).preprocessing == ()
    assert data.learn(data, ROWS[:40]).preprocessing[0].offsets == (np.median(large[:40]), 0.0)


def test_arrays_are_read_as_tables_are(tmp_path):
    large = np.stack([1e9 + SMALL, ROWS % 7], axis=1)
    np.savez(tmp_path / "a.npz", x=large, y=ROWS % 2)
    data = read(data_settings(name="arrays", path=tmp_path / "a.npz"))
    learnt, expected = scaled(data)[1], scaled(table(tmp_path / "a.csv", lines(large[:, 0])))[1]
    assert np.array_equal(learnt.x, expected.x)
    assert learnt.preprocessing[0].offsets == expected.preprocessing[0].offsets
    np.savez(tmp_path / "b.npz", x=large.astype(np.float32), y=ROWS % 2)
    assert read(data_settings(name="arrays", path=tmp_path / "b.npz")).raw is None


def test_targets_that_float32_does_not_tell_apart_are_refused(tmp_path):
    y = 100_000_001 + np.arange(8)
    assert len(set(y.astype(np.float32))) < len(y)
    message = f"too close to each other for float32; subtract {float(np.median(y))!r}"
    with pytest.raises(DataError, match=message):
        read(from_arrays(np.ones((8, 1)), y, targets="regression"))
    (tmp_path / "t.csv").write_text("x,y\n" + "".join(f"1,{value}\n" for value in y))
    source = {"name": "table", "path": tmp_path / "t.csv", "label_column": "y"}
    with pytest.raises(DataError, match=message):
        read(data_settings(**source, targets="regression"))
    assert read(data_settings(**source, label_above=100_000_004)).y.tolist() == [0] * 4 + [1] * 4
    shifted = read(from_arrays(np.ones((8, 1)), y - np.median(y), targets="regression"))
    assert shifted.y[:, 0].tolist() == (y - np.median(y)).tolist()


def test_every_silo_subtracts_what_was_agreed(tmp_path):
    """Also one that has a single value, of which float32 would make another."""
    _, learnt = scaled(table(tmp_path / "a.csv", lines(1e9 + SMALL)))
    recipe = learnt.preprocessing[0]
    (tmp_path / "b.csv").write_text(lines(np.full(80, 1e9 + 0.5)))
    np.savez(tmp_path / "b.npz", x=np.full((80, 2), 1e9 + 0.5), y=ROWS % 2)
    b = data_settings(name="table", path=tmp_path / "b.csv", label_column="died")
    silo = read(tabular.settings_as_agreed(b, recipe), keep_raw=True)
    silo = tabular.with_agreed_features(silo, recipe)
    np.testing.assert_allclose(silo.x[:, 0], 0.5 - np.median(SMALL), atol=1e-6)
    array = recipe.model_copy(
        update={
            "columns": tuple(
                c.model_copy(update={"name": str(k)}) for k, c in enumerate(recipe.columns)
            )
        }
    )
    settings = data_settings(name="arrays", path=tmp_path / "b.npz")
    local = read(tabular.settings_as_agreed(settings, array), keep_raw=True)
    np.testing.assert_allclose(tabular.with_agreed_features(local, array).x[:, 0], silo.x[:, 0])
    assert 1e9 + 0.5 in read_raw(settings, 0, 0).numbers("0")


def test_a_model_answers_for_raw_files(tmp_path):
    data = scaled(table(tmp_path / "a.csv", lines(1e9 + SMALL)))[1]
    metadata = ModelMetadata(
        client="A", model="m", network={"name": "logistic"}, kind="table", input_shape=(2,), outputs=2, vocabulary=0,
        words=(), targets="classes", classes=("0", "1"), labels=(), columns=data.columns, others=data.others,
        shift=data.shift, scale=data.scale, target_shift=(0.0,), target_scale=(1.0,), preprocessing=data.preprocessing[0],
    )  # fmt: skip
    np.savez(tmp_path / "a.npz", x=np.stack([1e9 + SMALL, ROWS % 7], axis=1))
    for name in ("a.csv", "a.npz"):
        np.testing.assert_array_equal(inputs.read(tmp_path / name, metadata).x, data.x)


@pytest.mark.parametrize("cell", ["1e39", "-6.659e+299", "inf"])
def test_numbers_that_float32_does_not_hold_are_named(tmp_path, cell):
    message = (
        rf"column t: 80 of 80 are not finite numbers, first '{re.escape(cell)}' in line 2: "
        r"beyond 1e\+18"
    )
    with pytest.raises(DataError, match=message):
        table(tmp_path / "a.csv", "t,died\n" + "".join(f"{cell},{k % 2}\n" for k in range(80)))


CELLS = st.one_of(
    st.floats(width=32).map(repr),
    st.text(max_size=4),
    st.sampled_from(["1e39", "-1e39", "nan", " 2 ", "NA", "", "<5", "+5", ".5", "5.", "true"]),
    st.sampled_from(["1,5", "1.145", "1.145,5", "1,145", "1E+02", "1,5e-05", "0.350", "1e400"]),
)


@given(
    st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=30),
    st.sampled_from(["", "comma", "point"]),
)
def test_cells_are_read_alike_in_whatever_company(rows, decimal):
    """The numbers of a column, and what is counted of it, are those of its cells one by one."""
    types = ("number", "number", "category")
    columns = [TableColumn(name=name, kind=t) for name, t in zip("abc", types, strict=True)]
    arrays = tuple(pa.chunked_array([pa.array(column)]) for column in zip(*rows, strict=True))
    table = TableSource(Path("f.csv"), Columns(tuple("abc"), arrays), None, header=True)
    raw, strays = cells.read([table], [decimal], (0, 1, 2), columns, 0.25)
    for k in (0, 1):
        expected = [cell_values.number(row[k], decimal) for row in rows]
        np.testing.assert_array_equal(raw.x[:, k], expected)
    codes = [cell_values.with_point(row[2], decimal * ("," in row[2])) for row in rows]
    codes = [cell_values.plain(code) for code in codes if not cell_values.is_missing(code)]
    assert raw.values[2] == tuple(dict.fromkeys(codes))
    for k, name in enumerate("abc"):
        unread = [row for row in range(len(rows)) if np.isnan(raw.x[row, k])]
        column = next((s for s in strays if s.name == name), None)
        unusable = [*column.gaps, *column.strays] if column else []
        assert sum(cell.rows for cell in unusable) == len(unread)
        assert not unread or min(cell.first for cell in unusable) == unread[0]
