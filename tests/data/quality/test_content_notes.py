"""Notes on a table's columns and labels: what they say, and that ordinary tables give none."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from patients import SITES, data_notes, notes, one, patients

from pomona.data import data_settings, from_arrays, from_clients, from_frame, read
from pomona.data.quality.answers import is_damaged


def at(frame, site, column, change):
    """Return the frame with a column changed at one site."""
    return frame.assign(**{column: frame[column].where(frame.site != site, change(frame[column]))})


def test_ordinary_patients_give_no_note():
    for seed in range(8):
        assert notes(patients(seed=seed)) == []
    assert data_notes(data_settings(name="digits"), clients=4) == []
    assert data_notes(data_settings(name="breast-cancer"), clients=4) == []


@pytest.mark.parametrize(("factor", "shift", "noted"), [(0.9, 5, 0), (1, 1024, 1), (0.001, 0, 1)])
def test_images_of_another_scale_at_one_client(factor, shift, noted):
    """Stored numbers beside HU, and real numbers near 1; another contrast is no other scale."""
    hu = np.random.default_rng(2).uniform(-1000, 1000, (12, 8, 8, 1)).astype(np.float32)
    y = np.arange(12) % 2
    sites = {"north": (hu, y), "south": (hu[::-1] * np.float32(factor) + np.float32(shift), y)}
    lines = [line for line in read(from_clients(sites)).notes if "values of images lie" in line]
    assert len(lines) == noted


def test_images_that_are_almost_empty_have_no_other_scale():
    """Fewer than 0.5 % of the pixels are not 0 in the north, and more in the south."""
    x = (np.arange(400) < [[1], [8]]).astype(np.uint8).reshape(2, 1, 20, 20, 1) * 255
    sites = {name: (images, [0]) for name, images in zip(("north", "south"), x, strict=True)}
    assert not any("values of images lie" in line for line in read(from_clients(sites)).notes)


def test_a_site_whose_images_are_blank_is_named():
    x = np.random.default_rng(3).integers(0, 256, (6, 8, 8, 1), np.uint8)
    sites = {
        "north": (x, [0, 1] * 3),
        "south": (x * (np.arange(6) < 1)[:, None, None, None], [0] * 6),
    }
    one(read(from_clients(sites)).notes, "most images of south have one value in all pixels")
    data = from_arrays(np.tile(x * 0, (2, 1, 1, 1)), [0, 1] * 6)
    one(read(data).notes, "most images of this data set have one value")
    lines = " ".join(read(from_clients({**sites, "west": (x // 128, [0, 1] * 3)})).notes)
    assert "images of south, west have one value" in lines
    lines = " ".join(read(from_clients({**sites, "west": (x // 64, [0, 1] * 3)})).notes)
    assert "values of images lie from 0 to 3 at west" in lines


@pytest.mark.parametrize("name", ["sums", "means"])
def test_a_last_row_of_sums_or_means_is_named(name):
    """Of all rows, or of a site; an ordinary last row is none of them."""
    frame = patients()
    row = frame.iloc[-1:].assign(**getattr(frame[["age", "crp", "sodium"]], name[:-1])().round(2))
    rows = pd.concat([frame, row], ignore_index=True)
    for table in (rows, rows.drop(columns="sodium")):
        lines = [line for line in notes(table) if "other rows" in line]
        one(lines, f"row 241 has the {name} of 240 other")
    scores = dict.fromkeys(("age", "crp", "sodium"), np.repeat([1, 3, 2, 1, 3, 2], 3))
    for usual in (frame, patients(18).assign(**scores)):
        assert not any("other rows" in line for line in notes(usual))


@pytest.mark.parametrize("cell", [1e17, 25_000.0, -3e5])
def test_one_cell_that_flattens_its_column_is_named(cell):
    """Standardised with it, the others differ by less than a tenth of a deviation."""
    frame = patients()
    name = next(c for c in frame if frame[c].dtype == float and frame[c].nunique() > 100)
    frame.loc[17, name] = cell
    x = frame[name]
    assert ((x - x.mean()) / x.std()).drop(17).std() < 0.1
    one(notes(frame), f"column {name}", "in row 18", "standardised", "correct the cell")
    frame.loc[17, name] = x.drop(17).mean() + 8 * x.drop(17).std()  # far, and yet a measurement
    assert not [text for text in notes(frame) if "standardised" in text]


@pytest.mark.parametrize("codes", [("ill", "well"), (1, 0), (2, 1), (7, -3)])
def test_a_copy_or_a_code_of_the_label(codes):
    frame = patients()
    frame["outcome"] = np.where(frame.y == "ill", *codes)
    text = {"categories": ["outcome"]} if isinstance(codes[0], str) else {}
    one(notes(frame, **text), "column outcome gives the label away", "drop_columns")


def test_a_copy_of_the_label_in_many_rows():
    """The probability by chance, 0.5 ** 2500, is below the smallest float."""
    y = np.arange(5000) % 2
    x = np.random.default_rng(0).normal(size=(5000, 2))
    x[:, 1] = y + 1
    one(read(from_arrays(x, y)).notes, "column 1 gives the label away")


def test_the_label_from_finer_codes_and_gaps():
    frame, draw = patients(), np.random.default_rng(1)
    finer = np.where(frame.y == "ill", draw.integers(1, 5, 240), 0)
    one(notes(frame.assign(stage=finer)), "column stage gives the label away")
    cause = np.where(frame.y == "ill", draw.random(240), np.nan)
    one(notes(frame.assign(cause=cause), missing="median"), "cause gives the label away", "empty")


def test_features_that_are_a_target_in_another_unit_and_the_time_or_the_event():
    frame, draw = patients(), np.random.default_rng(1)
    frame["y"] = draw.normal(70, 12, 240).round(2)
    one(
        notes(frame.assign(pounds=frame.y * 2.2046), targets="regression"),
        "column pounds gives the label away",
        "another unit",
    )
    frame["event"] = draw.integers(0, 2, 240)
    survival = {"label_column": None, "label_columns": ["y", "event"], "targets": "survival"}
    assert notes(frame, **survival) == []
    one(notes(frame.assign(days=frame.y), **survival), "days gives the time to the event away")
    one(notes(frame.assign(died=frame.event), **survival), "column died gives the event away")
    flags = {"label_column": None, "label_columns": ["event", "other"], "targets": "multilabel"}
    frame["other"] = draw.integers(0, 2, 240)
    one(
        notes(frame.drop(columns="y").assign(copy=frame.other), **flags),
        "column copy gives the label other away",
    )


def test_identifiers_and_counters():
    frame = patients().sort_values("site").reset_index(drop=True)
    one(
        notes(frame.assign(pid=np.arange(240)[::-1] + 2**22)),
        "different whole number in every row: 'pid'",
    )
    one(notes(frame.assign(mrn=2**53 + np.arange(240))), "16 digits and more, which are rounded")
    both = frame.assign(pid=np.arange(240), line=np.arange(240) + 7)
    one(notes(both), "different whole number in every row: 'pid', 'line'")
    one(
        notes(frame.assign(row=frame.groupby("site").cumcount() + 1)),
        "count the rows of a client",
        "row",
    )
    named = notes(frame.assign(code=[f"P{k}" for k in range(240)]), categories=["code"])
    assert any("another value in nearly every row: code (240 of 240)" in line for line in named)


def test_constant_and_empty_columns():
    frame = patients()
    one(notes(frame.assign(ward=5)), "same value in all rows: ward (5)")
    empty = notes(frame.assign(lab=np.nan), missing="median")
    one(empty, "column lab: no value in any of the 240 rows that are kept")
    there = at(frame.assign(lab=frame.crp + frame.age), "East", "lab", lambda _: np.nan)
    one(notes(there, missing="median"), "lab at East (0 of 80)")
    rare = frame.assign(lab=np.where(np.arange(240) % 40 == 0, frame.crp, np.nan))
    assert notes(rare, missing="median") == []


def test_a_column_that_is_empty_in_the_rows_with_a_label():
    """As of a REDCap export with a repeating instrument."""
    labs = patients().assign(y=None, age=np.nan, sodium=np.nan)
    visits = patients().assign(crp=np.nan)
    lines = notes(pd.concat([labs, visits]), unlabelled="drop", missing="median")
    assert any("column crp: no value in any of the 240 rows" in line for line in lines)


@pytest.mark.parametrize(
    "codes",
    [
        {"ill": "1", "well": "0"},
        {"ill": "yes", "well": "no"},
        {"ill": "krank", "well": "gesund"},
        {"ill": "TRUE", "well": "FALSE"},
    ],
)
def test_classes_that_clients_do_not_share(codes):
    frame = at(patients(), "East", "y", lambda y: y.map(codes))
    line = one(notes(frame), "classes that no two of these clients share", "ill, well at")
    assert all(text in line for text in (codes["ill"], "at East"))


@pytest.mark.parametrize(
    ("column", "subject"), [("y", "classes"), ("sex", "column sex: categories")]
)
def test_codes_that_overlap(column, subject):
    """1 is the higher code at most clients, and the lower one at East, as in R's survival data."""
    codes = pd.Series(np.random.default_rng(5).integers(0, 2, 240))
    frame = at(patients().assign(**{column: codes}), "East", column, lambda y: y + 1)
    settings = {"categories": ["sex"]} if column == "sex" else {}
    one(notes(frame, **settings), f"{subject}: two at each client", "0, 1 at", "1, 2 at East")
    frame = at(
        patients().assign(**{column: codes}), "East", column, lambda y: y + np.arange(240) // 3 % 2
    )
    assert not any("two at each client" in line for line in notes(frame, **settings))


def test_classes_that_are_one_answer_in_arrays_and_other_classes():
    rows = np.random.default_rng(0).normal(size=(60, 3))
    answers = {"A": ["no", "yes"] * 30, "B": ["0", "1"] * 30}
    data = from_clients(
        {name: (rows + k, np.array(y)) for k, (name, y) in enumerate(answers.items())}
    )
    one(data_notes(data), "classes that no two of these clients share", "0, 1 at B", "no, yes at A")
    mixed = from_arrays(rows, np.array(["no", "yes", "0"] * 20))
    one(data_notes(mixed, clients=1), "may be one answer: 0, no")
    linked = from_clients(
        {
            name: (rows + k, np.array(y * 30))
            for k, (name, y) in enumerate(
                {"A": ["a", "b"], "B": ["b", "c"], "C": ["c", "d"]}.items()
            )
        }
    )
    assert data_notes(linked) == []


def test_categories_and_codes_of_features_that_clients_do_not_share():
    frame = patients()
    frame["sex"] = np.array(["F", "M"])[np.arange(240) // 3 % 2]
    words = at(frame, "East", "sex", lambda sex: sex.map({"F": "vrouw", "M": "man"}))
    lines = notes(words, categories=["sex"])
    one(lines, "column sex: categories that no two", "man, vrouw at East", "F, M at")
    frame["sex"] = np.arange(240) // 3 % 2
    lines = notes(at(frame, "East", "sex", lambda sex: sex + 1))
    one(lines, "column sex: two values", "1, 2 at East", "0, 1 at")
    assert notes(frame) == []


@pytest.mark.parametrize("factor", [10, 100, 1000, 0.01, 18.02, 38.67, 88.4])
@pytest.mark.parametrize("column", ["age", "sodium"])
def test_a_unit_that_differs_at_one_client(factor, column):
    line = one(
        notes(at(patients(), "East", column, lambda x: x * factor)),
        f"column {column}: medians differ by a factor of units: East",
        "other clients",
    )
    assert ("more" in line) == (factor > 1)


@pytest.mark.parametrize(
    "change", [{}, {3: 0.0}, {3: 0.0, 4: -0.1}, dict.fromkeys(range(0, 240, 5), np.nan)]
)
def test_a_skewed_column_times_1000_with_zeros_signs_and_gaps(change):
    frame = patients()
    for row, value in change.items():
        frame.loc[row, "crp"] = value
    line = notes(at(frame, "East", "crp", lambda x: x * 1000), missing="median")
    assert any("column crp: medians differ" in one and "East" in one for one in line)
    assert not any("factor" in one for one in notes(frame, missing="median"))


def test_units_of_files_by_client_of_two_and_of_small_clients(tmp_path):
    frame = at(patients(), "East", "crp", lambda x: x * 1000)
    for site in SITES:
        frame[frame.site == site].drop(columns="site").to_csv(tmp_path / f"{site}.csv", index=False)
    files = [{"name": site, "train": tmp_path / f"{site}.csv"} for site in SITES]
    one(data_notes(data_settings(clients=files, label_column="y")), "column crp", "East has")
    one(data_notes(data_settings(clients=files[1:], label_column="y")), "column crp")
    small = frame.groupby("site").head(6)
    assert any(
        "column sodium" in line for line in notes(at(small, "East", "sodium", lambda x: x * 18.02))
    )


def test_temperatures_starts_of_counting_and_rows_in_another_unit():
    frame, draw = patients(), np.random.default_rng(1)
    frame["temperature"] = draw.normal(37, 0.7, 240).round(1)
    one(notes(at(frame, "East", "temperature", lambda t: t * 1.8 + 32)), "temperature", "East")
    frame["temperature"] = draw.integers(18000, 19000, 240)
    one(notes(at(frame, "East", "temperature", lambda t: t + 25569)), "column temperature", "East")
    frame["temperature"] = draw.normal(75, 12, 240).round(1)
    frame.loc[[3, 30, 60], "temperature"] *= 1000
    one(notes(frame), "column temperature: 3 of 80 rows of North have about 1000 times more")


@pytest.mark.parametrize("sites", [2, 5])
def test_ordinary_differences_between_clients_are_no_note(sites):
    """Medians that vary half as much as values within a client; at most 2 in 100 columns."""
    draw, lines = np.random.default_rng(sites), []
    for _ in range(4):
        x, client = np.empty((60 * sites, 50)), np.repeat(np.arange(sites), 60)
        for k in range(50):
            size = draw.choice([0.05, 0.3, 0.7, 1.2])
            level = draw.normal(0, size / 2, sites)
            x[:, k] = np.exp(draw.normal(level[client], size))
        lines += data_notes(from_arrays(x, draw.integers(0, 2, len(x)), client=client))
    assert len(lines) <= 4, lines


@pytest.mark.parametrize("marker", [-999, -9, -1, 999, 9999, 1e17, -99, 888])
def test_numbers_that_mark_a_gap(marker):
    frame = patients()
    frame["age"] = np.where(np.arange(240) % 17 == 0, marker, frame.age)
    text = f"{marker:.0f}" if abs(marker) < 1e15 else f"{marker:.3g}"
    line = one(notes(frame), f"column age: {text} in 15 rows", "the others are 20 to 89")
    assert f"data.missing_values = {{age = [{text}]}}" in line


@pytest.mark.parametrize("marker", [-999, -99, -9])
def test_a_single_marker_below_all_measurements(marker):
    frame = patients()
    frame.loc[7, "age"] = marker
    one(notes(frame), f"column age: {marker} in 1 row (1 of", f"{{age = [{marker}]}}")
    frame["age"] = np.arange(240) - 9  # its lowest number, not a marker
    assert "column age: -9" not in " ".join(notes(frame))


def test_several_markers_zeros_codes_and_a_single_value_at_one_client():
    frame = patients()
    frame["age"] = np.where(
        np.arange(240) % 17 == 0, -9, np.where(np.arange(240) % 19 == 0, -8, frame.age)
    )
    one(notes(frame), "age = [-9, -8]")
    one(
        notes(at(patients(), "East", "sodium", lambda _: 0)),
        "column sodium: 0 in 80 rows (80 of East)",
        "[0]",
    )
    one(
        notes(at(patients(), "East", "sodium", lambda _: 141.5)),
        "141.5 in 80 rows (80 of East)",
        "{sodium = [141.5]}",
    )
    frame = patients().assign(smoker=np.arange(240) // 3 % 2)
    frame.loc[::21, "smoker"] = 9
    one(notes(frame), "column smoker: 9 in 12 rows", "0 to 1")
    frame["smoker"] = np.where(frame.smoker == 9, "99", np.where(frame.smoker == 1, "yes", "no"))
    one(notes(frame, categories=["smoker"]), "column smoker: 99 in 12 rows", '["99"]')


def test_values_that_only_look_like_markers_are_no_note():
    draw = np.random.default_rng(0)
    frame = patients().assign(
        score=draw.integers(-3, 4, 240),
        percent=draw.integers(0, 100, 240),
        children=draw.choice([0, 1, 2, 3, 9], 240, p=[0.3, 0.3, 0.25, 0.14, 0.01]).clip(0, 4),
        z=draw.normal(size=240),
        minute=draw.integers(0, 60, 240),
    )
    assert notes(frame) == []


def test_markers_in_labels():
    frame = patients()
    frame["y"] = np.where(np.arange(240) % 20 == 0, 9, np.where(frame.y == "ill", 1, 0))
    one(notes(frame), "the label: 9 in 12 rows", "unlabelled")
    frame["y"] = np.where(
        np.arange(240) % 20 == 0, -999, np.random.default_rng(0).normal(70, 12, 240)
    )
    one(notes(frame, targets="regression"), "label y: -999 in 12 rows")


def dated(write):
    frame = patients()
    frame["day"] = [write(k, site) for k, site in enumerate(frame.site)]
    return notes(frame, dates=["day"])


def test_dates():
    assert dated(lambda k, _: f"20{10 + k % 10}-{1 + k % 12:02}-{1 + k % 28:02}") == []

    def day(k):
        return f"20{10 + k % 10}-{1 + k % 12:02}-{1 + k % 28:02}"

    one(
        dated(lambda k, s: day(k) if s == "East" else f"{day(k)}T1{k % 9}:{k % 60:02}:00"),
        "column day: dates without a time of day at East",
    )
    one(
        dated(lambda k, s: day(k) + ("T23:00:00" if s == "East" else "")),
        "not midnight, at East",
        "time zone",
    )
    one(
        dated(
            lambda k, s: f"20{10 + k % 10}-{1 + k % 12:02}-{1 + k % (12 if s == 'East' else 28):02}"
        ),
        "no day after the 12th at East",
    )
    one(dated(lambda k, _: day(k) if k % 9 else "1900-01-01"), "1900-01-01 in 27 rows", '["1900-')
    one(dated(lambda k, _: day(k) if k % 50 else f"00{10 + k % 10}-03-04"), "dates are before 1880")


def test_time_zones_at_one_client():
    def time(k):
        return f"20{10 + k % 10}-{1 + k % 12:02}-{1 + k % 28:02}T1{k % 9}:{k % 60:02}:00"

    turned, line = dated(lambda k, s: time(k) + "+02:00" * (s == "East"))
    assert turned == "times of another time zone, turned to UTC: day (80)"
    assert "time zone at East, and none at North" in line
    one(dated(lambda k, _: time(k) + "+02:00"), "turned to UTC: day (240)")
    assert dated(lambda k, _: time(k)) == dated(lambda k, _: time(k) + "Z") == []
    one(dated(lambda k, _: time(k) + "Z" * (k % 7 == 0)), "some times of", "have a time zone")
    frame = patients().assign(day=[time(k) + "Z" * (k % 7 == 0) for k in range(240)])
    alone = from_frame(
        frame.drop(columns="site"), label_column="y", dates=["day"], duplicates="drop"
    )
    one(data_notes(alone, clients=2), "some times of the data have a time zone")


def test_times_of_a_split_of_which_some_have_a_time_zone():
    days = [f"2024-{1 + k // 28:02}-{1 + k % 28:02}T10:00" for k in range(240)]

    def lines(zone, step):
        frame = patients().assign(day=[day + zone * (k % step == 0) for k, day in enumerate(days)])
        data = from_frame(frame, label_column="y", client_column="site", time_column="day")
        return [line for line in read(data).notes if line.startswith("time column")]

    assert lines("", 1) == lines("+02:00", 1) == []
    assert "day: 80 of 240 times have a time zone and are turned to UTC" in lines("+02:00", 3)[0]


def test_identifiers_that_repeat_now_and_then():
    frame = patients().assign(patient=np.minimum(np.arange(240) + 1000, 1229))
    lines = notes(frame)
    assert any("that repeat: patient (230 values in 240 rows)" in line for line in lines)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("MÃ¼nchen", True), ("mã¼ller", True), ("M√ºnchen", True), ("K\ufffdln", True),
        ("NiÃ±o", True), ("München", False), ("Łódź", False), ("東京", False), ("Ünal", False), ("plain", False),
        ("", False), ("Ärzte", False), ("naïve café", False),
    ],
)  # fmt: skip
def test_letters_that_an_encoding_has_damaged(name, expected):
    assert is_damaged(name) is expected


def test_damaged_names_of_categories_classes_and_clients():
    frame = patients().replace({"site": {"East": "KÃ¶ln"}, "y": {"ill": "mÃ¼de"}})
    line = one(notes(frame), "letters damaged by an encoding", "data.encoding")
    assert all(text in line for text in ("classes 'mÃ¼de'", "clients 'KÃ¶ln'", "'müde'"))


def test_patients_of_several_clients():
    frame = patients().assign(who=[f"P{k // 2}" for k in range(240)])
    lines = notes(frame, group_column="who")
    one(lines, "who: values at several clients", "patients: 120")


TABLES = Path("multicentre_tables")
READ = {"categories": "encode", "missing": "median", "unlabelled": "drop"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("file", "settings", "facts"),
    [
        ("bmt", {"label_columns": ["t2", "d3"], "client_column": "z9", "targets": "survival"}, ["'rownames'"]),
        ("dialysis_brazil", {"label_columns": ["time", "event"], "client_column": "fac_center", "targets": "survival"}, ["'pid'"]),
        ("hsb82", {"label_column": "mAch", "client_column": "school", "targets": "regression"}, ["'rownames'"]),
        ("indo_rct", {"label_column": "outcome", "client_column": "site"}, ["'rownames', 'id'"]),
        ("pbc3", {"label_columns": ["time", "event"], "client_column": "fac_unit", "targets": "survival"}, ["'pid'"]),
    ],
)  # fmt: skip
def test_real_tables_have_only_the_notes_that_they_should(file, settings, facts):
    path = catalogue_folder() / TABLES / f"{file}.csv"
    one(data_notes(data_settings(name="table", path=path, **READ, **settings)), *facts)


def catalogue_folder():
    """Return the folder of data sets; the test is skipped without it."""
    import os

    folder = os.environ.get("POMONA_DATA")
    if not folder or not (Path(folder) / TABLES).is_dir():
        pytest.skip("needs the tables of POMONA_DATA")
    return Path(folder)


def test_zeros_of_a_real_hospital():
    folder = catalogue_folder() / "heart_disease"
    columns = [
        "age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca", "thal",
        "num",
    ]  # fmt: skip
    sites = ("cleveland", "hungarian", "switzerland", "va")
    files = [{"name": site, "train": folder / f"processed.{site}.data"} for site in sites]
    data = data_settings(
        clients=files, columns=columns, label_column="num", label_above=0, missing="median"
    )
    empty, zeros = data_notes(data)
    one([zeros], "chol: 0 in 172 rows (123 of switzerland, 49 of va)", "{chol = [0]}")
    one([empty], "ca at hungarian (3 of 294), va (2 of 200)")
