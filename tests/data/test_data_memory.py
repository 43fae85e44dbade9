"""Data in memory: the same numbers as from files, the same checks, and a record that names them."""

from dataclasses import replace
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pomona
from pomona.config import resolve
from pomona.core.errors import CheckpointError, ConfigError, DataError
from pomona.data import from_arrays, from_clients, from_frame, read
from pomona.scenario import Scenario

DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(60, 4))
Y = (X[:, 0] > 0).astype(int)
SITE = np.array(["b", "a", "c"])[np.arange(60) % 3]
FRAME = pd.DataFrame(X, columns=list("pqrs")).assign(
    outcome=np.where(Y, "ill", "well"),
    site=SITE,
    patient=np.arange(60) // 6,
    day=pd.Timestamp("2024-01-01") + pd.to_timedelta(np.arange(60), "D"),
    sex=pd.Categorical(np.where(X[:, 1] > 0, "F", "M")),
)
FRAME.loc[3, "p"] = np.nan
COLUMNS = {
    "label_column": "outcome",
    "client_column": "site",
    "group_column": "patient",
    "dates": ["day"],
    "categories": ["sex"],
    "missing": "median",
}
RUN = {"method": "apple", "model": "logistic", "rounds": 2, "lr": 0.1, "workers": 1}


def equal(a, b):
    """Whether two results have the same models, to the bit."""
    return a.models.keys() == b.models.keys() and all(
        torch.equal(tensor, b.models[client][name])
        for client, model in a.models.items()
        for name, tensor in model.items()
    )


def archives(folder, x, y, site):
    """An archive of each site, and section data of them."""
    names = sorted(set(site))
    for name in names:
        np.savez(folder / f"{name}.npz", x=x[site == name], y=y[site == name])
    clients = [{"name": name, "train": folder / f"{name}.npz"} for name in names]
    return {"clients": clients}


def test_arrays_are_the_archives_of_the_same_rows_to_the_bit(tmp_path):
    in_memory = pomona.run(data=from_arrays(X, Y, SITE), **RUN)
    rows = {name: (X[name == SITE], Y[name == SITE]) for name in "abc"}
    np.savez(tmp_path / "all.npz", x=X, y=Y, client=SITE)
    archive = pomona.run(data={"name": "arrays", "path": tmp_path / "all.npz"}, **RUN)
    several = pomona.run(data=archives(tmp_path, X, Y, SITE), **RUN)
    assert equal(in_memory, archive)
    assert equal(in_memory, several)
    assert equal(in_memory, pomona.run(data=from_clients(rows), **RUN))
    assert in_memory.about["data"]["fingerprint"] == several.about["data"]["fingerprint"]
    assert in_memory.about["clients"] == ["a", "b", "c"]
    assert not equal(in_memory, pomona.run(data=from_arrays(-X, Y, SITE), **RUN))


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_frame_is_the_file_of_the_same_rows_to_the_bit(suffix, tmp_path):
    path = tmp_path / f"rows.{suffix}"
    FRAME.to_csv(path, index=False) if suffix == "csv" else FRAME.to_parquet(path)
    in_memory = pomona.run(data=from_frame(FRAME, **COLUMNS), **RUN)
    filed = pomona.run(data={"path": path, **COLUMNS}, **RUN)
    assert equal(in_memory, filed)
    assert in_memory.about["preprocessing"] == filed.about["preprocessing"]
    assert in_memory.about["data"]["fingerprint"] == filed.about["data"]["fingerprint"]


class Pairs(torch.utils.data.Dataset):
    """Items (x, y) of arrays."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.y)

    def __getitem__(self, row):
        return self.x[row], self.y[row]


def test_data_sets_of_pytorch_have_their_channels_first():
    images = DRAW.random((20, 5, 6, 3)).astype(np.float32)
    y = np.arange(20) % 2
    firsts = torch.from_numpy(images).movedim(-1, 1)
    dataset = read(from_clients({"a": Pairs(firsts, torch.from_numpy(y)), "b": (images, y)}))
    assert dataset.x.shape == (40, 5, 6, 3)
    assert np.array_equal(dataset.x[:20], dataset.x[20:])
    assert np.array_equal(dataset.y[:20], y)


class Noisy(Pairs):
    """Items with a random transform, which can only be iterated."""

    def __getitem__(self, row):
        x, y = super().__getitem__(row)
        return iter((x + torch.rand(()), y))


def test_a_random_transform_is_drawn_once_with_a_note():
    pairs = torch.ones(20, 3, 5, 6), torch.arange(20) % 2
    dataset = read(from_clients({"a": Noisy(*pairs), "b": Pairs(*pairs)}))
    (note,) = [note for note in dataset.notes if "random transform" in note]
    assert note.startswith("client a, train: items differ each time")
    with pytest.raises(DataError, match="client a, train, x: Tensor is not an array"):
        from_clients({"a": Pairs(pairs[0].bfloat16(), pairs[1])})


def test_items_of_objects_are_refused_without_a_word_on_transforms():
    """Objects of Decimal: the addresses differ each time that an item is read."""

    class Decimals:
        def __len__(self):
            return 4

        def __getitem__(self, row):
            return np.array([Decimal(row)], object), row % 2

    with pytest.raises(DataError, match="x is object"):
        read(data := from_clients({"a": Decimals()}))
    assert data._content.notes == ()


def test_a_clients_own_test_rows_are_its_test_rows():
    data = from_clients({"a": (X, Y), "b": (X + 1, Y)}, test={"b": (X[:7] - 9, Y[:7])})
    scenario = Scenario.prepare(pomona.Config(data=data, **RUN))
    test_rows = scenario.partition.clients[1].test
    assert np.array_equal(scenario.dataset.x[test_rows], (X[:7] - 9).astype(np.float32))
    assert len(scenario.partition.clients[0].test) == 12
    test = FRAME[:9].assign(site="a")
    framed = read(from_frame(FRAME, test, **{**COLUMNS, "group_column": None}))
    assert framed.n_train == 60
    assert (framed.owners.role[60:] == 2).all()


def test_a_name_that_is_given_is_no_gap():
    """NA is Namibia's code; a number is a name, too."""
    names = read(from_clients({"NA": (X, Y), "DE": (X, Y), 3.0: (X, Y)})).owners.names
    assert names == ("NA", "DE", "3")


def test_names_of_classes_are_classes_in_order():
    sorted_names = read(from_arrays(X, np.where(Y, "well", "ill"), SITE))
    assert sorted_names.classes == ("ill", "well")
    assert np.array_equal(np.sort(sorted_names.y), np.sort(Y))
    given_order = read(from_arrays(X, np.where(Y, "well", "ill"), classes=["well", "ill", "dead"]))
    assert given_order.classes == ("well", "ill", "dead")
    assert np.array_equal(given_order.y, 1 - Y)
    with pytest.raises(DataError, match=r"client c, y: 20 labels are not classes, first 'ill'"):
        read(from_arrays(X, np.where(SITE == "c", "ill", "well"), SITE, classes=["well"]))


@pytest.mark.parametrize("targets", ["regression", "multilabel"])
@pytest.mark.parametrize("dtype", [str, object, "string"])
def test_texts_are_no_numbers(targets, dtype):
    texts = pd.Series(["1.5", "10", "2.5"]).astype(dtype)
    with pytest.raises(DataError, match=r"y is .*; give numbers, or class names"):
        read(from_arrays(X[:3], texts, targets=targets))


def with_entry(array, value, row=31):
    """A copy with one wrong entry, in a row of client a, of which it is row 10."""
    assert SITE[row] == "a"
    array = array.astype(float if isinstance(value, float) else array.dtype)
    array[row] = value
    return array


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (with_entry(X, np.nan), Y, "client a, x: 1 rows hold NaN.*, first row 10"),
        (X, with_entry(Y, -1), "client a, y: 1 labels are not class numbers .* first -1 in row 10"),
        (X, with_entry(Y, 0.5), "client a, y: labels are float64, not whole .*first 0.5 in row 10"),
        (X.astype(object), Y, r"client a, x is object \(first .*\); give numbers"),
        (X, Y * np.timedelta64(1, "D"), "client a, y is timedelta64"),
        (X[:, 0], Y, r"client a, x is float64 \(20,\); images are"),
        (X[:, :0], Y, r"x is float64 \(60, 0\)|x is float32 \(60, 0\)"),
    ],
)
def test_bad_values_are_named_by_client_and_row(x, y, message):
    with pytest.raises(DataError, match=message):
        read(from_arrays(x, y, SITE))


@pytest.mark.parametrize(
    ("construct", "message"),
    [
        (lambda: from_arrays(X, Y[:9]), "x has 60 rows but y has 9"),
        (lambda: from_arrays(X, Y, SITE[:9]), "x has 60 rows but client has 9"),
        (lambda: from_arrays(X, Y, [*SITE[:59], None]), "row 59 names no client"),
        (lambda: from_arrays(3, Y), "x is a int; give an array"),
        (lambda: from_arrays([[1], [2, 3]], Y), "x: list is not an array"),
        (lambda: from_arrays(np.ma.masked_invalid(X), Y), "x has masked cells"),
        (lambda: from_clients({}), "no client is given"),
        (lambda: from_clients({"a": X}), "client a, train: ndarray does not give pairs"),
        (lambda: from_clients({"a": (X, Y)}, test={"b": (X, Y)}), "'b' has no training rows"),
        (lambda: from_clients({1: (X, Y), "1": (X, Y)}), "no name, or share one"),
        (lambda: from_clients({"a": (X, Y), "a ": (X, Y)}), "or share one"),
        (lambda: from_clients({"": (X, Y)}), "clients have no name"),
        (lambda: from_clients([(X, Y)]), "clients is a list; give a mapping"),
        (lambda: read(from_clients({"a": (X, Y), "b": (X[:3], Y)})), "client b, x has 3 rows but"),
        (
            lambda: from_clients({"a": [(X[0], 0), (X[0, :2], 1)]}),
            "client a, train, x: row 1 has shape",
        ),
        (lambda: read(from_arrays(X[:0], np.zeros(0))), "has no rows"),
        (lambda: from_frame(X), "frame is a ndarray; give a frame .of pandas"),
    ],
)
def test_what_is_no_data_is_told_in_a_line(construct, message):
    with pytest.raises(DataError, match=message):
        construct()


def test_cells_of_a_frame_are_named_by_their_row():
    frame = FRAME.assign(q=FRAME["q"].astype(object))
    frame.loc[7, "q"] = "much"
    with pytest.raises(DataError, match=r"^frame: column q: .* first 'much' in row 7"):
        read(from_frame(frame, **COLUMNS))
    with pytest.raises(ConfigError, match="frame has no column 'outcom'; did you mean outcome"):
        read(from_frame(FRAME, **COLUMNS | {"label_column": "outcom"}))
    with pytest.raises(ConfigError, match="no setting of a table in memory; remove it"):
        from_frame(FRAME, resize=4, **COLUMNS)


@pytest.mark.long
@settings(max_examples=25)
@given(
    sizes=st.lists(st.integers(0, 4), min_size=1, max_size=3),
    classes=st.integers(1, 3),
    features=st.integers(1, 3),
)
def test_all_sizes_train_or_are_refused_as_archives_are(sizes, classes, features, tmp_path_factory):
    """A client of no, one or few rows, of one class: the same models or the same refusal."""
    site = np.repeat([f"s{k}" for k in range(len(sizes))], sizes)
    x, y = DRAW.normal(size=(len(site), features)), np.arange(len(site)) % classes
    clients = {f"s{k}": (x[site == f"s{k}"], y[site == f"s{k}"]) for k in range(len(sizes))}
    folder = tmp_path_factory.mktemp("sizes")
    for name, (rows, labels) in clients.items():
        np.savez(folder / f"{name}.npz", x=rows, y=labels)
    archived = [{"name": name, "train": folder / f"{name}.npz"} for name in clients]
    outcomes = []
    for data in (from_clients(clients), {"clients": archived}):
        try:
            outcomes.append(pomona.run(data=data, **RUN))
        except pomona.PomonaError as fault:
            outcomes.append(type(fault))
    assert outcomes[0] == outcomes[1] if isinstance(outcomes[0], type) else equal(*outcomes)


def test_a_run_goes_on_with_the_same_data_alone(tmp_path):
    path = tmp_path / "run"
    expected = pomona.run(data=from_arrays(X, Y, SITE), **RUN | {"rounds": 3})
    pomona.run(data=from_arrays(X, Y, SITE), out=path, **RUN)
    with pytest.raises(CheckpointError, match="different values of data"):
        pomona.run(data=from_arrays(X[::-1], Y, SITE), out=path, resume=True, **RUN | {"rounds": 3})
    longer = pomona.run(data=from_arrays(X, Y, SITE), out=path, resume=True, **RUN | {"rounds": 3})
    assert equal(longer, expected)
    config = resolve(longer.config)
    with pytest.raises(DataError, match=r"data.name = arrays: .* in a Python program's memory"):
        pomona.run(config, path, resume=True)
    assert equal(pomona.run(config.model_copy(update={"data": from_arrays(X, Y, SITE)})), expected)


def test_worker_processes_have_the_data():
    serial = pomona.run(data=from_arrays(X, Y, SITE), **RUN)
    assert equal(serial, pomona.run(data=from_arrays(X, Y, SITE), **RUN | {"workers": 2}))


def test_a_partition_deals_rows_without_owners():
    result = pomona.run(data=from_arrays(X, Y), partition="dirichlet", clients=2, **RUN)
    assert len(result.models) == 2
    grouped = read(from_arrays(X, Y, group=np.arange(60) // 6))
    assert np.array_equal(grouped.groups.number, np.arange(60) // 6)
    assert replace(grouped, groups=None).fingerprint == read(from_arrays(X, Y)).fingerprint
