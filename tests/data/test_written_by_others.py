"""Tables that pandas and polars write, whose content is easily read as something else."""

from datetime import datetime, timedelta, timezone

import numpy as np
import pandas as pd
import polars
import pytest

from pomona.core.errors import DataError
from pomona.data import data_settings, from_frame, read

ROWS = 40


def patients(**columns):
    return pd.DataFrame({"age": np.arange(ROWS) * 7 % 41 + 30, "y": ["a", "b"] * 20, **columns})


def table(path, **settings):
    return read(data_settings(name="table", path=str(path), label_column="y", **settings))


@pytest.mark.parametrize("suffix", [".parquet", ".feather"])
def test_row_names_of_pandas_are_not_a_feature(tmp_path, suffix):
    frame = patients().sample(frac=1, random_state=0)
    if suffix == ".feather":  # refuses an index; Arrow's own writer keeps it
        import pyarrow as pa

        arrow = pa.Table.from_pandas(frame)
        with pa.ipc.new_file(tmp_path / f"t{suffix}", arrow.schema) as file:
            file.write_table(arrow)
    else:
        frame.to_parquet(tmp_path / f"t{suffix}")
    data = table(tmp_path / f"t{suffix}")
    assert data.columns == ("age",)
    assert any("__index_level_0__" in note for note in data.notes)


def test_periods_of_pandas_are_dates_in_a_frame_and_noted_in_a_file(tmp_path):
    """pandas stores a month as the number of months since 1970."""
    frame = patients(month=pd.period_range("2024-01", periods=ROWS, freq="M"))
    for same in (frame, frame.astype({"month": "category"})):
        data = read(from_frame(same, label_column="y", dates=["month"]))
        january = 366 * 6 + 365 * 18  # days since 2000
        assert data.raw.x[:2, 1].tolist() == [january, january + 31]
    frame.to_parquet(tmp_path / "t.parquet")
    data = table(tmp_path / "t.parquet")
    assert data.x[0, 1] == (2024 - 1970) * 12
    assert any("periods of pandas are read as numbers" in note for note in data.notes)


def test_intervals_of_pandas_are_categories_as_in_its_csv(tmp_path):
    """``pandas.cut`` gives them as the values of a category, an array of breaks as a type."""
    ages = pd.Series([np.nan, *range(1, ROWS)])
    breaks = pd.arrays.IntervalArray.from_breaks([0.5, 1.5, 2.5]).take([0, 1] * 20)
    frame = patients(group=pd.cut(ages, 3), width=breaks)
    options = {"categories": ["group", "width"], "missing": "median"}
    data = read(from_frame(frame, label_column="y", **options))
    assert data.columns[-2:] == ("width=(0.5, 1.5]", "width=(1.5, 2.5]")
    frame.to_csv(tmp_path / "t.csv", index=False)
    same = table(tmp_path / "t.csv", **options)
    assert (data.columns, data.raw.values) == (same.columns, same.raw.values)
    np.testing.assert_array_equal(data.raw.x, same.raw.x)


def test_categories_of_polars(tmp_path):
    frame = polars.from_pandas(patients()).with_columns(
        polars.Series("sex", ["f", "m"] * 20).cast(polars.Categorical),
        polars.Series("grade", ["low", "high"] * 20, dtype=polars.Enum(["low", "high", "unused"])),
    )
    frame.write_ipc(tmp_path / "t.arrow")
    names = ("age", "sex=f", "sex=m", "grade=high", "grade=low")
    options = {"label_column": "y", "categories": ["sex", "grade"]}
    assert read(from_frame(frame, **options)).columns == names
    assert table(tmp_path / "t.arrow", categories=["sex", "grade"]).columns == names


def test_a_column_of_a_frame_that_arrow_does_not_know():
    wide = polars.from_pandas(patients()).with_columns(
        polars.Series("wide", [2**100] * ROWS, dtype=polars.Int128)
    )
    with pytest.raises(DataError, match="leave the column out"):
        from_frame(wide, label_column="y")


def test_numbers_that_are_dates_are_noted(tmp_path):
    days = pd.date_range("2023-12-20", periods=ROWS).strftime("%Y%m%d").astype(int)
    path = tmp_path / "t.csv"
    patients(visit=days).to_csv(path, index=False)
    assert any("20231220" in n and "data.dates" in n for n in table(path).notes)
    assert not any("data.dates" in n for n in table(path, dates=["visit"]).notes)
    patients(visit=days * 10).to_csv(path, index=False)
    assert not any("data.dates" in n for n in table(path).notes)


@pytest.mark.parametrize("cell", ["2024-03", "45123", "March"])
def test_a_column_of_other_dates_is_not_one_of_markers(tmp_path, cell):
    path = tmp_path / "t.csv"
    patients(visit=[cell] * ROWS).to_csv(path, index=False)
    with pytest.raises(DataError, match="dates in another form") as refused:
        table(path, dates=["visit"])
    assert "missing_values" not in str(refused.value)


def test_answers_are_not_markers_of_gaps(tmp_path):
    path = tmp_path / "t.csv"
    patients(smoker=["1", "0", "1", "N"] * 10).to_csv(path, index=False)
    with pytest.raises(DataError, match="single cells: correct them"):
        table(path)
    patients(smoker=["1", "0", "yes", "no"] * 10).to_csv(path, index=False)
    notes = " ".join(table(path, categories=["smoker"]).notes)
    assert "column smoker: categories that may be one answer: 0, no" in notes
    patients(smoker=["f", "n", "y", "t"] * 10).to_csv(path, index=False)  # letters as codes
    assert "one answer" not in " ".join(table(path, categories=["smoker"]).notes)


@pytest.mark.parametrize(
    ("factor", "noted"), [(30.44, True), (12, True), (365.25, True), (1, False)]
)
def test_times_of_an_event_in_another_unit_are_noted(factor, noted):
    draw = np.random.Generator(np.random.Philox(1))
    days, unit = draw.exponential(400, 200) + 1, np.repeat([1, factor], 100)
    frame = pd.DataFrame({"site": np.repeat(["A", "B"], 100), "age": draw.integers(20, 90, 200),
                          "time": days / unit, "event": draw.integers(0, 2, 200)})  # fmt: skip
    for targets, labels in (("survival", ["time", "event"]), ("regression", ["time"])):
        drop = [*{"event"} - {*labels}]
        settings = {"targets": targets, "label_columns": labels, "drop_columns": drop}
        notes = read(from_frame(frame, client_column="site", **settings)).notes
        assert any("time" in n and "factor of units" in n for n in notes) == noted


def test_groups_in_two_spellings_and_numbers_that_may_be_codes_are_noted(tmp_path):
    """A patient of two spellings may be in training and in test; codes 0250 and 250 are one, and a
    ward 2E3 is 2000. R writes 100000 as 1e+05.
    """
    codes = [("0250", "250")[k % 2] for k in range(ROWS)]
    people = [("Pat 1", "PAT 1", " Pat 1 ", "1e+05", "100000")[k % 5] for k in range(ROWS)]
    frame = patients(icd=codes, ward=["2E3", "1E2"] * 20, who=people)
    frame.to_csv(tmp_path / "t.csv", index=False)
    data = table(tmp_path / "t.csv", group_column="who")
    assert len(np.unique(data.groups.number)) == 4
    line = " ".join(data.notes)
    assert "groups that differ in capital letters, blanks, zeros or the form of characters" in line
    assert "only: 100000, 1e+05, PAT 1, Pat 1; if they are one" in line
    assert "an E within, are read by value (025 is 25, 1E2 is 100): icd, ward; if they are" in line
    assert data.columns == ("age", "icd", "ward")
    assert data.x[:2, 1:].tolist() == [[250, 2000], [250, 100]]
    names = [f"P{k % 9}" for k in range(ROWS)]
    plain = patients(icd=["0.5", "250"] * 20, ward=["1.5e2", "1e+05"] * 20, who=names)
    plain.to_csv(tmp_path / "p.csv", index=False)
    line = " ".join(table(tmp_path / "p.csv", group_column="who").notes)
    assert "zeros in front" not in line
    assert "groups that differ" not in line


def test_texts_among_categories_that_are_gaps_are_noted(tmp_path):
    """NA may be Namibia; empty cells are gaps for everyone."""
    regions = [("NA", "EU", None, "?")[k % 4] for k in range(ROWS)]
    for path, write in ((tmp_path / "t.csv", "to_csv"), (tmp_path / "t.parquet", "to_parquet")):
        getattr(patients(region=regions), write)(path, index=False)
        notes = table(path, categories=["region"], missing="median").notes
        lines = [line for line in notes if line.startswith("texts that are gaps")]
        assert len(lines) == 1
        assert lines[0].endswith("region (NA: 10, ?: 10)")


def test_times_of_another_zone_that_are_categories_are_not_turned(tmp_path):
    patients(slot=["2024-01-01T08:00+02:00", "early"] * 20).to_csv(tmp_path / "t.csv", index=False)
    notes = " ".join(table(tmp_path / "t.csv", categories="encode").notes)
    assert "turned to UTC" not in notes


@pytest.mark.parametrize("mark", [";", "\t", "|"])
def test_decimal_commas_in_a_first_line_without_names(tmp_path, mark):
    rows = [f"{k},5{mark}{k * 7 % 41}{mark}{'ab'[k % 2]}" for k in range(ROWS)]
    (tmp_path / "t.csv").write_text("\n".join(rows), encoding="utf-8")
    data = read(data_settings(name="table", path=str(tmp_path / "t.csv"), label_column=2))
    assert data.x[:2].tolist() == [[0.5, 0], [1.5, 7]]
    assert data.classes == ("a", "b")


def test_files_of_a_folder_whose_names_differ_in_part_are_refused(tmp_path):
    for name, header in (("1.csv", "sex,y"), ("2.csv", "Sex,y")):
        rows = [f"{'fm'[k % 2]},{'ab'[k % 2]}" for k in range(ROWS)]
        (tmp_path / name).write_text("\n".join([header, *rows]), encoding="utf-8")
    with pytest.raises(DataError, match="names its columns Sex, y, and another file of the folder"):
        table(tmp_path, categories=["sex"])


@pytest.mark.parametrize("first", [0, 1])
def test_objects_with_and_without_a_time_zone_are_noted(first):
    """Arrow gives all the zone of the first, or none, without a word."""
    noon = datetime(2024, 7, 1, 12)
    times = [noon, noon.replace(tzinfo=timezone(timedelta(hours=2)))]
    frame = patients(t=pd.Series([times[(k + first) % 2] for k in range(ROWS)], dtype=object))
    data = read(from_frame(frame, label_column="y", dates=["t"]))
    assert data.raw.x[first, 1] - data.raw.x[1 - first, 1] == pytest.approx(2 / 24)
    assert any(
        "some times of the data have a time zone, and some have none" in n for n in data.notes
    )


def test_objects_that_are_dates_and_times_keep_their_times():
    """Arrow gives all the form of the first, a date."""
    noon = datetime(2024, 7, 1, 12)
    frame = patients(t=pd.Series([noon.date(), noon] * (ROWS // 2), dtype=object))
    days = read(from_frame(frame, label_column="y", dates=["t"])).raw.x[:, 1]
    assert (days[1::2] - days[::2] == 0.5).all()


@pytest.mark.parametrize(
    "dates", [("1-Mar", "2-Sep"), ("2024-03-01", "02. Okt"), ("Mar-01", "5-Mai")]
)
def test_dates_among_names_are_noted(tmp_path, dates):
    """Spreadsheets make them of genes (MARCH1) and of ages (1-3)."""
    genes = patients(gene=["TP53", *dates, "10-14"] * 10)
    genes.to_csv(tmp_path / "t.csv", index=False)
    notes = " ".join(table(tmp_path / "t.csv", categories=["gene"]).notes)
    assert f"column gene: dates among other names ({', '.join(dates)})" in notes
    labels = genes.drop(columns="y").rename(columns={"gene": "y"})
    labels.to_csv(tmp_path / "y.csv", index=False)
    notes = " ".join(table(tmp_path / "y.csv").notes)
    assert "classes: dates among other names" in notes
    for usual in (dates * 20, ["Oct-4", "5-9", "10-14", "p.1-Mar"] * 10):
        patients(gene=usual).to_csv(tmp_path / "t.csv", index=False)
        notes = " ".join(table(tmp_path / "t.csv", categories=["gene"]).notes)
        assert "dates among" not in notes
