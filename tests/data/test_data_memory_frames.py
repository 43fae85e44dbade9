"""Frames and data sets of a Python program: columns and rows meet by name, or are refused by it."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pomona
from pomona.core.errors import ConfigError, DataError
from pomona.data import from_arrays, from_clients, from_frame, read
from pomona.personal import PersonalModel

DRAW = np.random.default_rng(0)
NAMES = ["bmi", "systolic", "crp"]
X = DRAW.normal(size=(60, 3)) * [1, 50, 1] + [0, 100, 0]
Y = (X[:, 0] > X[:, 2]).astype(int)
FRAME = pd.DataFrame(X, columns=NAMES)
NORTH = np.arange(60) % 2 == 0
TURNED = FRAME[~NORTH][["crp", "systolic", "bmi"]]


def sites(north=FRAME[NORTH], south=TURNED, y=Y):
    """Pairs of two sites."""
    return {"North": (north, y[NORTH]), "South": (south, y[~NORTH])}


ARRAYS = read(from_clients(sites(X[NORTH], X[~NORTH])))


def arrow(frame):
    return pa.Table.from_pandas(frame, preserve_index=False)


@pytest.mark.parametrize(
    ("north", "south"),
    [(pd.DataFrame, pd.DataFrame), (pl.from_pandas, arrow), (arrow, pl.from_pandas)],
)
def test_columns_of_clients_meet_by_name(north, south):
    dataset = read(from_clients(sites(north(FRAME[NORTH]), south(TURNED))))
    assert dataset.columns == tuple(NAMES)
    assert dataset.fingerprint == ARRAYS.fingerprint


@settings(max_examples=20, deadline=None)
@given(order=st.permutations(NAMES), rows=st.integers(0, 3))
def test_any_order_in_any_split_gives_the_same_rows(order, rows):
    test = {"South": (TURNED[order][:rows], Y[~NORTH][:rows])}
    dataset = read(from_clients(sites(south=TURNED[order]), validation=test, test=test))
    added = X[~NORTH][:rows].astype(np.float32)
    assert np.array_equal(dataset.x, np.concatenate([ARRAYS.x, added, added]))
    assert dataset.owners.role.tolist() == [0] * 60 + [1] * rows + [2] * rows


def test_a_model_of_turned_frames_is_that_of_straight_ones():
    run = {"method": "fedavg", "model": "logistic", "rounds": 2, "lr": 0.1, "workers": 1}
    straight = pomona.run(data=from_clients(sites(south=FRAME[~NORTH])), **run)
    turned = pomona.run(data=from_clients(sites()), **run)
    for client, model in straight.models.items():
        for name, tensor in model.items():
            assert torch.equal(tensor, turned.models[client][name])
    answers = PersonalModel.of(turned, "South").predict(TURNED)  # by name, too
    assert answers == PersonalModel.of(straight, "South").predict(FRAME[~NORTH])


@pytest.mark.parametrize(
    ("south", "messages"),
    [
        (
            TURNED.rename(columns={"crp": "CRP"}),
            ["client South", "client North", "lacks crp", "CRP"],
        ),
        (TURNED.assign(age=1), ["only it has age"]),
        (TURNED[["bmi"]], ["lacks crp, systolic"]),
        (TURNED.to_numpy(), ["client South", "ndarray", "bmi, systolic, crp"]),
        (TURNED.set_axis(["crp", "bmi", "bmi"], axis=1), ["South", "lacks systolic"]),
    ],
)
def test_other_columns_are_named_with_the_client(south, messages):
    with pytest.raises(DataError) as fault:
        read(from_clients(sites(south=south)))
    assert all(message in str(fault.value) for message in messages), str(fault.value)


@pytest.mark.parametrize(
    ("construct", "messages"),
    [
        (lambda: from_arrays(FRAME, "crp"), ["'crp'", "from_frame(x, label_column=y)"]),
        (lambda: from_arrays(dict(FRAME), Y), ["x is a dictionary", "pandas.DataFrame"]),
        (lambda: from_arrays(FRAME.to_records(), Y), ["fields index, bmi", "pandas.DataFrame"]),
        (lambda: from_arrays(FRAME.astype(object).to_numpy(), Y), ["x is object"]),
    ],
)
def test_other_tables_are_refused_with_the_way_to_a_frame(construct, messages):
    with pytest.raises(DataError) as fault:
        read(construct())
    assert all(message in str(fault.value) for message in messages), str(fault.value)


def test_names_are_compared_as_those_of_files():
    blank = FRAME[NORTH].rename(columns={"bmi": " bmi ", "crp": "cr\u0070"})
    assert read(from_clients(sites(blank))).fingerprint == ARRAYS.fingerprint
    accents = sites(*(f.rename(columns={"bmi": n}) for f, n in ((FRAME[NORTH], "gr\u00f6\u00dfe"), (TURNED, "gro\u0308\u00dfe"))))  # fmt: skip
    assert read(from_clients(accents)).fingerprint == ARRAYS.fingerprint


def test_a_column_twice_does_not_meet_by_name_and_numbers_are_names():
    twice = FRAME.set_axis(["a", "a", "b"], axis=1)
    with pytest.raises(DataError, match=r"client North: several columns are named a"):
        read(from_clients(sites(twice[NORTH], twice[~NORTH])))
    single = read(from_arrays(twice, Y))
    assert "several columns are named a" in "".join(single.notes)
    assert read(from_arrays(FRAME.set_axis([0, 1, 2], axis=1), Y)).columns == ("0", "1", "2")


def test_labels_in_another_order_of_rows_are_refused():
    mixed = pd.Series(Y).sample(frac=1, random_state=0)
    for construct in (
        lambda: from_arrays(FRAME, mixed),
        lambda: from_arrays(FRAME, Y, client=mixed),
        lambda: from_clients({"a": (FRAME, mixed)}),
    ):
        with pytest.raises(DataError, match=r"a different index from x .*y\.loc\[x\.index\]"):
            construct()
    assert np.array_equal(read(from_arrays(FRAME, mixed.loc[FRAME.index])).y, Y)


RICH = FRAME.assign(
    sex=pd.Categorical(np.where(X[:, 1] > 100, "F", "M")),
    smoker=X[:, 0] > 0,
    pack_years=pd.array([None, *range(59)], dtype="Int64"),
    day=pd.Timestamp("2024-01-01") + pd.to_timedelta(np.arange(60), "D"),
)
PREPARED = {"categories": ["sex"], "missing": "median", "dates": ["day"]}


def test_frames_of_clients_are_read_as_one_frame_with_a_column_of_clients():
    """Truth values, categories, nullable numbers and dates, in both ways the same features."""
    separate = read(from_clients(sites(RICH[NORTH], RICH[~NORTH]), **PREPARED))
    table = RICH.assign(site=np.where(NORTH, "North", "South"), ill=Y)
    table = pd.concat([table[NORTH], table[~NORTH]])
    joint = read(from_frame(table, label_column="ill", client_column="site", **PREPARED))
    assert separate.columns == joint.columns
    assert separate.fingerprint == joint.fingerprint
    with_client = read(from_arrays(RICH, Y, np.where(NORTH, "North", "South"), **PREPARED))
    assert with_client.columns == joint.columns
    with pytest.raises(DataError, match=r"sex.*client North.*data.categories"):
        read(from_clients(sites(RICH[NORTH], RICH[~NORTH])))


def test_from_arrays_of_a_frame_keeps_names_and_labels():
    series = pd.Series(np.where(Y, "ill", "well"), name="outcome")
    dataset = read(from_arrays(FRAME, series, group=np.arange(60) // 6))
    assert (dataset.columns, dataset.others) == (tuple(NAMES), ("outcome", "group"))
    assert dataset.classes == ("ill", "well")
    assert np.array_equal(dataset.groups.number, np.arange(60) // 6)
    reordered = read(from_arrays(FRAME, Y, classes=["well", "ill"]))
    assert np.array_equal(reordered.y, Y)
    assert read(from_arrays(FRAME.assign(label=1), Y)).columns == (*NAMES, "label")
    targets = read(from_arrays(FRAME, FRAME[["crp", "bmi"]] * 2, targets="regression"))
    assert np.allclose(targets.y, X[:, [2, 0]] * 2)
    with pytest.raises(ConfigError, match=r"label_column.*y"):
        from_arrays(FRAME, Y, label_column="crp")
    with pytest.raises(ConfigError, match=r"client_column"):
        from_clients(sites(), client_column="crp")


def test_frames_with_their_labels_within():
    framed = {"North": FRAME[NORTH].assign(ill=Y[NORTH]), "South": TURNED.assign(ill=Y[~NORTH])}
    assert read(from_clients(framed, label_column="ill")).fingerprint == ARRAYS.fingerprint
    with pytest.raises(DataError, match=r"client North.* label_column"):
        from_clients(framed)


IMAGES = DRAW.integers(0, 255, (20, 8, 9, 3), np.uint8)
CHW = torch.from_numpy(np.moveaxis(IMAGES, -1, 1).copy())
CLASS = np.arange(20) % 2


def items(**values):
    """A data set of dictionaries."""
    return [{key: column[k] for key, column in values.items()} for k in range(20)]


@pytest.mark.parametrize(
    ("client", "note"),
    [
        (items(image=CHW, label=CLASS), "have channels first"),
        (items(img=IMAGES, label=CLASS, meta=["m"] * 20), "'img', y is 'label'; not used: meta"),
        ({"pixel_values": IMAGES, "labels": CLASS}, ""),
        ([IMAGES, CLASS], ""),
        ((CHW, CLASS), "axis 1 has the channels"),
        ((CHW.numpy(), CLASS.astype(float)), "axis 1 has the channels"),
        ([(torch.from_numpy(image), y) for image, y in zip(IMAGES, CLASS, strict=True)], ""),
        (torch.utils.data.TensorDataset(CHW, torch.from_numpy(CLASS)), "have channels first"),
    ],
)
def test_images_in_every_usual_form_are_the_same_data(client, note):
    dataset = read(from_clients({"a": client}))
    assert np.array_equal(dataset.x, IMAGES)
    assert np.array_equal(dataset.y, CLASS)
    assert len(dataset.notes) == bool(note)
    assert note in "".join(dataset.notes)


def test_masks_as_monai_gives_them():
    masks = torch.from_numpy((IMAGES[..., :1] > 99).astype(np.int64).transpose(0, 3, 1, 2))
    dataset = read(from_clients({"a": items(image=CHW, seg=masks)}, targets="segmentation"))
    assert np.array_equal(dataset.y, IMAGES[..., 0] > 99)


@pytest.mark.parametrize(
    ("client", "messages"),
    [
        (items(t1=CHW, label=CLASS), ["client a", "t1, label", "rename the keys"]),
        (items(image=CHW, label=CLASS, mask=CLASS), ["image, label, mask"]),
        ({"train": 1, "test": 2}, ["train, test"]),
        (items(image=["a.nii.gz"] * 20, label=CLASS), ["client a", "a.nii.gz", "CSV"]),
        (torch.utils.data.DataLoader([(CHW[0], 1)]), ["DataLoader", "loader.dataset"]),
        ((X, Y * 0.5), ["float64", "0.5", 'data.targets = "regression"']),
        ((X, np.stack([Y, Y], 1)), ['"multilabel"']),
    ],
)
def test_what_has_two_meanings_is_refused_with_its_names(client, messages):
    with pytest.raises(DataError) as fault:
        read(from_clients({"a": client}))
    assert all(message in str(fault.value) for message in messages), str(fault.value)


def test_names_at_one_site_and_numbers_at_another_are_refused_with_both():
    with pytest.raises(DataError, match=r"client B.*'well'.*client A.* 0|client B.*'ill'") as fault:
        read(from_clients({"A": (X, Y), "B": (X, np.where(Y, "ill", "well"))}))
    assert "client A" in str(fault.value)


def test_whole_numbers_with_a_point_are_classes_as_in_a_frame():
    floats = read(from_arrays(X, Y.astype(np.float32)))
    framed = read(from_arrays(FRAME, Y.astype(np.float32)))
    assert floats.classes == framed.classes == ("0", "1")
    assert np.array_equal(floats.y, framed.y)
