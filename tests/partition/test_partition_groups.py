"""Groups of rows, and rows with dates: no split separates a group, and the latest rows are for
testing.
"""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier

from pomona.config import resolve
from pomona.core.errors import DataError
from pomona.core.rng import stream
from pomona.data import Dataset, Owners, data_settings, read
from pomona.data.dataset import RowGroups
from pomona.partition import Dirichlet, Iid, Natural, divide
from pomona.record import predictions
from pomona.scenario import Scenario
from pomona.scenario.description import groups_of_test_rows
from pomona.simulation import run as simulate

SPLITS = ("train", "validation", "test")


def grouped(sizes, owners=None, times=None, seed=0):
    """A table with groups of these sizes, in a random order, each group of one class."""
    draw = stream(seed, "test")
    number = draw.permutation(np.repeat(np.arange(len(sizes)), sizes))
    y = (number % 2).astype(np.int64)
    x = draw.normal(size=(len(y), 2)).astype(np.float32)
    owned = None
    if owners:
        owned = Owners(
            tuple("abc"[:owners]), (number % owners).astype(np.int64), np.zeros(len(y), np.int8)
        )
    return Dataset(
        "made",
        "table",
        x,
        y,
        ("0", "1"),
        len(y),
        owners=owned,
        groups=RowGroups("who", number),
        times=times,
    )


def groups_of(partition, number):
    """Groups in each client's splits."""
    return [[{*number[getattr(c, split)].tolist()} for split in SPLITS] for c in partition.clients]


@pytest.mark.parametrize(
    ("recipe", "owners"), [(Iid(), None), (Dirichlet(beta=1.0, min_size=4), None), (Natural(), 3)]
)
def test_a_group_is_in_one_part_of_one_client(recipe, owners):
    data = grouped([1 + k % 5 for k in range(90)], owners)
    partition = divide(data, data_settings(test_share=0.2, validation_share=0.2), recipe, 3, 0)
    of_clients = groups_of(partition, data.groups.number)
    sets = [ids for client in of_clients for ids in client]
    assert sum(map(len, sets)) == len(set().union(*sets)) == 90
    tested = sum(len(client[2]) for client in of_clients)
    # a share of groups; each of three owners rounds its own
    assert tested == pytest.approx(0.2 * 90, abs=3)


def test_the_same_identifier_at_two_owners_is_two_groups():
    number = np.array([0, 0, 1, 1, 0, 0, 1, 1])
    owner = np.repeat([0, 1], 4)
    assert RowGroups("who", number).within(owner).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_data_that_tear_a_group_themselves_are_refused():
    data = grouped([3] * 4)
    with pytest.raises(
        DataError,
        match=r"of 4 groups of who have rows in several of training, validation and test, first",
    ):
        divide(replace(data, n_train=7), data_settings(), Iid(), 1, 0)
    partition = divide(
        replace(data, n_train=7), data_settings(split="pooled", test_share=0.25), Iid(), 1, 0
    )
    assert len(partition.clients[0].test) == 3


def test_the_latest_rows_are_for_testing_and_the_latest_of_the_others_for_validation():
    times = stream(1, "test").permutation(100).astype(float)
    data = replace(grouped([1] * 100), groups=None, times=times)
    shares = data_settings(test_share=0.2, validation_share=0.25)
    (client,) = divide(data, shares, Iid(), 1, 0).clients
    assert [sorted(times[getattr(client, split)]) for split in SPLITS] == [
        list(range(60)), list(range(60, 80)), list(range(80, 100))
    ]  # fmt: skip


def test_a_group_goes_where_its_latest_row_goes():
    data = grouped([2] * 10)
    times = np.zeros(20)
    late = np.flatnonzero(data.groups.number == 4)[0]
    times[late] = 1.0  # its other row is as early as all
    data = replace(data, times=times)
    (client,) = divide(data, data_settings(test_share=0.1), Iid(), 1, 0).clients
    assert sorted(client.test) == sorted(np.flatnonzero(data.groups.number == 4))


def visits(patients=160, rows=6):
    """Blood values that identify each patient, and a random label per patient: new patients cannot
    be predicted.
    """
    draw = stream(5, "test")
    lines = ["patient,day,a,b,c,d,hospital,sick"]
    for p in range(patients):
        level, sick = draw.normal(size=4) * 3, draw.integers(2)
        for v in range(rows):
            cells = ",".join(f"{x:.3f}" for x in level + draw.normal(size=4) * 0.1)
            lines.append(f"P{p:03d},2024-{v + 1:02d}-{p % 28 + 1:02d},{cells},H{p % 2},{sick}")
    return "\n".join(lines) + "\n"


def ward(tmp_path, **data):
    (tmp_path / "visits.csv").write_text(visits())
    table = {
        "name": "table",
        "path": str(tmp_path / "visits.csv"),
        "label_column": "sick",
        "client_column": "hospital",
    }
    settings = {
        "data": {**table, **data},
        "method": {"name": "separate"},
        "model": {"name": "mlp", "hidden": [64]},
    }
    return resolve({**settings, "rounds": 1, "lr": 0.2, "workers": 1})


def recognised(scenario):
    """Share of all test rows with the label of their client's nearest training row."""
    x, y = scenario.dataset.x, scenario.dataset.y
    right = []
    for client in scenario.partition.clients:
        nearest = KNeighborsClassifier(1).fit(x[client.train], y[client.train])
        right += (nearest.predict(x[client.test]) == y[client.test]).tolist()
    return np.mean(right)


def test_a_coin_toss_by_patient_cannot_be_told_of_new_patients(tmp_path):
    torn = Scenario.prepare(ward(tmp_path, drop_columns=["patient", "day"]))
    intact = Scenario.prepare(ward(tmp_path, group_column="patient", drop_columns=["day"]))
    assert recognised(torn) > 0.9
    assert recognised(intact) < 0.5 + 3 * 0.5 / 32**0.5  # 32 patients for testing, one coin each
    assert groups_of_test_rows(intact)[0].tolist() == np.repeat(np.arange(16), 6).tolist()
    assert simulate(intact.config).groups(0).tolist() == groups_of_test_rows(intact)[0].tolist()
    assert not groups_of_test_rows(torn)
    assert "identifiers that repeat: patient (160 values in 960 rows)" in " ".join(torn.remarks)
    assert not [line for line in intact.remarks if "identifiers" in line]


def test_groups_are_kept_with_predictions(tmp_path):
    answers = {0: (np.zeros((3, 2), np.float32), np.array([0, 1, 1]))}
    predictions.save(tmp_path, answers, {0: np.array([0, 0, 1])})
    assert predictions.StoredPredictions(tmp_path).groups(0).tolist() == [0, 0, 1]
    assert predictions.StoredPredictions(tmp_path).groups(1) is None
    predictions.save(tmp_path, answers, {0: np.array([0.5, 0, 1])})
    with pytest.raises(DataError, match="no groups of client 0 that are numbers"):
        predictions.StoredPredictions(tmp_path).groups(0)


def test_a_table_split_by_date(tmp_path):
    scenario = Scenario.prepare(
        ward(tmp_path, time_column="day", drop_columns=["patient"], validation_share=0)
    )
    days = scenario.dataset.times
    assert scenario.dataset.columns == ("a", "b", "c", "d")
    for client in scenario.partition.clients:
        assert days[client.train].max() <= days[client.test].min()
    roles = {"label_column": "sick", "time_column": "hospital", "drop_columns": ["patient", "day"]}
    with pytest.raises(
        DataError, match=r"time column hospital: 960 of 960 .*, first 'H0' in line 2"
    ):
        read(data_settings(name="table", path=tmp_path / "visits.csv", **roles))


def test_owners_and_groups_of_arrays_are_arrays_beside_them(tmp_path):
    x, y = np.zeros((4, 2), np.float32), np.array([0, 1, 0, 1])
    np.savez(tmp_path / "a.npz", x=x, y=y, client=["N", "S", "N", "S"], group=[7, 7, 7, 9])
    data = read(data_settings(name="arrays", path=tmp_path / "a.npz"))
    assert (data.owners.names, data.owners.client.tolist()) == (("N", "S"), [0, 1, 0, 1])
    assert data.groups.number.tolist() == [0, 0, 0, 1]
    np.savez(tmp_path / "b.npz", x=x, y=y, x_test=x, y_test=y, client=["N"] * 4)
    with pytest.raises(DataError, match="no array 'client_test', others have"):
        read(data_settings(name="arrays", path=tmp_path / "b.npz"))
    np.savez(tmp_path / "c.npz", x=x, y=y, group=[1, 2])
    with pytest.raises(DataError, match=r"array group is int64 .*; give 4 numbers or texts"):
        read(data_settings(name="arrays", path=tmp_path / "c.npz"))


def test_rows_that_have_owners_stay_with_them_unless_a_partition_is_named(tmp_path):
    np.savez(
        tmp_path / "a.npz",
        x=stream(0, "t").normal(size=(40, 2)),
        y=np.arange(40) % 2,
        client=["N"] * 20 + ["S"] * 20,
    )
    run = {
        "data": {"name": "arrays", "path": str(tmp_path / "a.npz")},
        "lr": 0.1,
        "model": {"name": "logistic"},
    }
    scenario = Scenario.prepare(resolve(run))
    assert (scenario.names, scenario.config.partition) == (["N", "S"], Natural())
    assert Scenario.prepare(resolve(run, {"partition": "iid", "clients": 4})).names == [
        f"client {k}" for k in range(4)
    ]
    single = Scenario.prepare(resolve(run, {"clients": 1}))
    assert (single.names, len(single.partition.clients[0].test)) == (["client 0"], 8)
