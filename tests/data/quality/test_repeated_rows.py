"""Equal rows of splits and clients, of every content, and ``data.duplicates``."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from patients import data_notes, notes, one, patients
from PIL import Image

from pomona.core.errors import DataError
from pomona.data import data_settings, from_arrays, from_clients, read
from pomona.data.quality.equal_rows import Repeats, hashed, repeats_are_expected


def sites(shape=(3,), n=100):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(2 * n, *shape))
    if len(shape) > 1:
        x = (x * 50 + 128).clip(0, 255).astype(np.uint8)
    y = draw.integers(0, 2, 2 * n)
    return {"North": (x[:n], y[:n]), "South": (x[n:], y[n:])}


def part(sites, rows):
    return {name: (x[rows], y[rows]) for name, (x, y) in sites.items()}


@pytest.mark.parametrize(
    ("shape", "noun"), [((3,), "rows"), ((5, 5, 1), "images"), ((3, 4, 4, 1), "images")]
)
def test_given_test_rows_that_are_training_rows(shape, noun):
    data = sites(shape)
    lines = data_notes(from_clients(data, test=part(data, slice(40)), validation_share=0.0))
    one(
        lines,
        f"80 of 80 test {noun} equal training {noun}",
        "40 of North",
        "40 of South",
        "duplicates=drop",
    )
    validation = from_clients(
        part(data, slice(60)), validation=part(data, slice(10)), test=part(data, slice(60, 100))
    )
    one(data_notes(validation), f"20 of 20 validation {noun}")
    drawn = data_notes(from_clients(data, test=part(data, slice(40))))
    one(drawn, f"80 of 80 test {noun} equal training or validation {noun}")
    separate = from_clients(part(data, slice(60)), test=part(data, slice(60, 100)))
    assert data_notes(separate) == []


def test_rows_of_an_archive_of_a_folder_and_of_files_by_client(tmp_path):
    x, y = sites()["North"]
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x[:20], y_test=y[:20])
    one(
        data_notes(
            data_settings(name="arrays", path=tmp_path / "a.npz", validation_share=0.0), clients=1
        ),
        "20 of 20 test rows",
    )
    frame = patients().drop(columns="site")
    frame.to_csv(tmp_path / "train.csv", index=False)
    frame[:30].to_csv(tmp_path / "test.csv", index=False)
    folder = data_settings(name="table", path=tmp_path, label_column="y", validation_share=0.0)
    one(data_notes(folder, clients=1), "30 of 30 test rows")
    files = [{"name": "A", "train": tmp_path / "train.csv", "test": tmp_path / "test.csv"}]
    by_client = data_settings(clients=files, label_column="y", validation_share=0.0)
    one(data_notes(by_client), "30 of 30 test rows", "30 of A")


def test_images_of_folders_and_manifests(tmp_path):
    draw = np.random.default_rng(0)
    lines = ["path,label,client,split"]
    for k in range(24):
        pixels = draw.integers(0, 255, (6, 6), dtype=np.uint8)
        copied = k % 12 < 3
        for split in ("train", "test") if copied else ("train" if k % 12 < 9 else "test",):
            name = f"{split}-{k}.png"
            for folder in (tmp_path, tmp_path / "f" / split / "ab"[k % 2]):
                folder.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(folder / name)
            lines.append(f"{name},{'ab'[k % 2]},{'NS'[k // 12]},{split}")
    (tmp_path / "m.csv").write_text("\n".join(lines) + "\n")
    none = {"validation_share": 0.0}
    manifest = data_notes(data_settings(name="images", path=tmp_path / "m.csv", **none))
    one(manifest, "6 of 12 test images", "3 of N", "3 of S", "pixels and label")
    folder = data_notes(data_settings(name="images", path=tmp_path / "f", **none), clients=1)
    one(folder, "6 of 12 test images")


def test_texts(tmp_path):
    draw = np.random.default_rng(0)
    words = [f"w{k}" for k in range(400)]
    rows = [("ab"[k % 2], " ".join(draw.choice(words, 12))) for k in range(80)]
    frame = pd.DataFrame(rows, columns=["y", "text"])
    frame.to_csv(tmp_path / "train.csv", index=False)
    frame[:16].to_csv(tmp_path / "test.csv", index=False)
    texts = data_settings(
        name="text", path=tmp_path, label_column="y", text_columns=["text"], validation_share=0.0
    )
    one(data_notes(texts, clients=1, model="fasttext"), "16 of 16 test texts", "words and label")


def test_rows_that_two_clients_have_and_rows_entered_twice():
    frame = patients()
    copied = frame[:30].assign(site="West")
    one(
        notes(pd.concat([frame, copied])),
        "same at another client, features and label: 30 ",
        "of West at",
        "test rows that another client trains on",
    )
    twice = notes(pd.concat([frame, frame[:60]]))
    assert any("test rows and" in line and "rows of the same client" in line for line in twice)
    assert any(line.startswith("training rows that repeat") for line in twice)


def test_equal_rows_with_different_labels():
    frame = patients()
    other = frame[:9].assign(y=np.where(frame[:9].y == "ill", "well", "ill"))
    one(
        notes(pd.concat([frame, other])),
        "equal rows with different labels: 18 (",
        " in train of ",
        "its equal",
    )


def test_equal_values_have_equal_hashes():
    rows = np.array([[0.0, np.nan], [-0.0, -np.nan], [0.0, 1.0]])
    first, same, other = hashed(rows).tolist()
    assert first == same != other
    assert hashed(rows[:0]).tolist() == []


@pytest.mark.parametrize("columns", [2, 3, 5])
def test_coarse_rows_that_repeat_by_chance_are_no_note(columns):
    draw = np.random.default_rng(columns)
    frame = pd.DataFrame(draw.integers(0, 3 if columns > 2 else 9, (400, columns)))
    frame.columns = [f"c{k}" for k in range(columns)]
    frame = frame.assign(y=draw.integers(0, 2, 400), site=draw.integers(0, 4, 400))
    assert notes(frame) == []


def test_coarse_training_rows_given_for_testing_are_noted():
    draw = np.random.default_rng(0)
    train = {"A": (draw.integers(0, 9, (100, 4)).astype(float), draw.integers(0, 2, 100))}
    assert data_notes(from_clients(train, test=part(train, slice(40)), validation_share=0.0))


@given(st.integers(0, 2**20), st.integers(1, 6), st.integers(0, 50))
@settings(max_examples=20, deadline=None)
def test_measurements_that_were_copied_are_not_by_chance(seed, columns, copies):
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(200, columns))
    x = np.concatenate([x, x[:copies]])
    numbers = np.unique(hashed(x), return_inverse=True)[1]
    assert not repeats_are_expected(x, numbers)


@pytest.mark.parametrize("n", [0, 1])
def test_no_rows_and_one(n):
    x = np.zeros((n, 2))
    assert not repeats_are_expected(x, np.zeros(n, np.int64))
    assert not Repeats(np.zeros(n, np.int64), np.zeros(n, np.int64)).any


def test_duplicates_are_dropped_from_test_first():
    data = sites()
    test = {
        "North": (
            np.concatenate([data["North"][0][:40], np.eye(3)]),
            np.append(data["North"][1][:40], [0, 1, 0]),
        )
    }
    kept = read(from_clients(data, test=test))
    dropped = read(from_clients(data, test=test, duplicates="drop"))
    assert (len(kept), len(dropped), dropped.n_train) == (243, 203, 200)
    assert (dropped.x[200:] == np.eye(3)).all()
    assert np.bincount(dropped.owners.role).tolist() == [200, 0, 3]
    one(dropped.notes, "40 rows that repeat others", "40 test", "40 of North")
    with pytest.raises(DataError, match="40 rows repeat others"):
        read(from_clients(data, test=test, duplicates="error"))
    assert read(from_clients(data, duplicates="error")).notes == ()


def test_a_client_whose_test_rows_are_all_dropped_is_noted():
    data = sites()
    test = {"North": (data["North"][0][:20], data["North"][1][:20])}
    dropped = read(from_clients(data, test=test, duplicates="drop"))
    assert np.bincount(dropped.owners.role).tolist() == [200]
    note = dropped.notes[-1]
    assert "all test rows of North repeat others" in note
    assert "drawn from the training rows" in note


def test_duplicates_of_a_table_with_gaps_groups_and_times():
    frame = patients().assign(who=np.arange(240) // 2, day="2024-03-01")
    frame.loc[5:9, "crp"] = np.nan
    columns = {
        "group_column": "who",
        "time_column": "day",
        "subgroup_column": "age",
        "missing": "median",
    }
    frame.age = frame.age // 20
    twice = pd.concat([frame, frame])
    lines = notes(twice, duplicates="drop", **columns)
    assert any("240 rows that repeat others" in line for line in lines)
    assert not any(
        "equal training" in line or line.startswith("training rows") for line in lines
    ), lines


@pytest.mark.parametrize("duplicates", ["drop", "error", "keep"])
def test_data_without_repeats_are_as_they_were(duplicates):
    x, y = sites()["North"]
    assert (
        read(from_arrays(x, y, duplicates=duplicates)).fingerprint
        == read(from_arrays(x, y)).fingerprint
    )
