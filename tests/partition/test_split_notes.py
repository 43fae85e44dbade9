"""Notes on a split: its time, classes on one side of it, test rows of some clients alone."""

from dataclasses import replace

import numpy as np
import pytest

from pomona.config import Config
from pomona.data import data_settings, from_clients
from pomona.data.dataset import Dataset, Owners, RowGroups
from pomona.partition import Dirichlet, Natural, divide
from pomona.partition.partition import ClientRows, Partition
from pomona.partition.split_notes import Clients, split_notes
from pomona.scenario import Scenario

NAMES = ("A", "B")


def owned(y, n_clients=2, **fields):
    """A table whose rows belong to the clients in turn."""
    y = np.asarray(y)
    client = np.arange(len(y)) % n_clients
    fields = {
        "classes": ("well", "ill", "rare"),
        "owners": Owners(NAMES[:n_clients], client, np.zeros(len(y), np.int8)),
    } | fields
    return Dataset("rows", "table", np.zeros((len(y), 1), np.float32), y, n_train=len(y), **fields)


def partition_of(*clients, recipe="natural"):
    """A partition of rows: train, validation, test of each client."""
    rows = [ClientRows(*(np.array(split, np.int64) for split in client)) for client in clients]
    return Partition(tuple(rows), {"name": recipe})


def notes(dataset, partition, founders=(0, 1), validated=False):
    return split_notes(dataset, partition, Clients(NAMES, founders, validated))


def test_rows_of_the_time_of_the_split_are_counted():
    times = np.array([1.0, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3])
    data = owned(np.zeros(12, np.int64), times=times)
    # A, even rows: times 1 2 2 2 2 3; three for testing: one is of 3, two of the four of 2
    partition = divide(data, data_settings(test_share=0.5, validation_share=0), Natural(), 2, 0)
    (line,) = notes(data, partition)
    assert "8 rows of A, B have the time at which the split lies" in line
    untied = replace(data, times=np.arange(12.0))
    assert notes(untied, divide(untied, data_settings(validation_share=0.2), Natural(), 2, 0)) == []


def test_a_single_client_has_the_notes_of_its_owners():
    """Pooled: A's rows end later than B's, and each has a time on both sides."""
    times = np.array([5.0, 1, 6, 2, 6, 2, 6, 2])
    data = owned(np.zeros(8, np.int64), times=times)
    partition = divide(data, data_settings(test_share=0.5, validation_share=0), Natural(), 1, 0)
    lines = split_notes(data, partition, Clients(["client 0"], [0]))
    assert [line.partition(" have the time")[0] for line in lines] == ["6 rows of A, B"]


def test_of_groups_the_latest_rows_count():
    """Patients 0 (rows at 1 and 3) and 1 (row at 3): both end at 3, on both sides of the split."""
    data = owned(
        np.zeros(3, np.int64),
        1,
        times=np.array([1.0, 3, 3]),
        groups=RowGroups("patient", np.array([0, 0, 1])),
    )
    lines = split_notes(data, partition_of(([0, 1], [], [2])), Clients(["A"], [0]))
    assert ["3 rows of A have the time" in line for line in lines] == [True]


def test_classes_on_one_side_alone_are_named_with_their_clients():
    # A trains on ill and tests well alone; B tests rare, which it does not train on
    data = owned([0, 0, 1, 1, 0, 0, 1, 1, 0, 2])
    partition = partition_of(([0, 2, 6], [], [4, 8]), ([1, 3, 7], [], [5, 9]))
    lines = notes(data, partition)
    assert lines[0].startswith("class ill (A, B) in training rows only, so that test")
    assert lines[1].startswith("class rare (B) in test rows, but")
    assert len(lines) == 2


@pytest.mark.parametrize("validated", [True, False])
def test_validation_counts_where_it_decides(validated):
    data = owned([0, 0, 1, 1, 0, 0, 1, 1, 0, 0])
    partition = partition_of(([0, 2], [4], [6, 8]), ([1, 3], [5], [7, 9]))
    assert [line.startswith("class ill (A, B) in training rows only, so that val") for line in (
        notes(data, partition, validated=validated)
    )] == [True] * validated  # fmt: skip


def test_labels_and_events_have_their_own_names():
    flags = np.array([[1, 0], [1, 0], [0, 0], [0, 0]], np.float32)
    of_labels = owned(flags, classes=(), labels=("fever", "rash"), target_kind="multilabel")
    partition = partition_of(([0], [], [2]), ([1], [], [3]))
    assert notes(of_labels, partition)[0].startswith("label fever (A, B) in training rows only")
    events = np.array([[1, 1], [1, 1], [2, 0], [2, 0]], np.float32)
    assert notes(owned(events, classes=(), target_kind="survival"), partition)[0].startswith(
        "an event (A, B) in training rows only"
    )


def test_rounding_of_dealt_shares_is_no_note():
    """Shares of 5 % of 20 rows of a class: a training row, and perhaps no test row."""
    data = replace(owned(np.arange(200) % 2), owners=None)
    partition = divide(data, data_settings(), Dirichlet(beta=0.5), 2, 1)
    assert notes(data, partition, validated=True) == []


def test_classes_of_clients_that_come_later_are_named():
    data = owned([0, 0, 1, 2, 0, 0, 1, 2])
    partition = partition_of(([0, 2], [], [4, 6]), ([1, 3], [], [5, 7]))
    (line,) = notes(data, partition, founders=(0,))
    assert line.startswith("no client of round 1 has training rows of class rare")


def test_test_rows_given_for_one_client_alone():
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(40, 3)), np.arange(40) % 2
    data = from_clients({"A": (x, y), "B": (x + 1, y)}, test={"A": (x[:10] + 2, y[:10])})
    scenario = Scenario.prepare(Config(method="fedavg", data=data, lr=0.1, rounds=1))
    (line,) = [note for note in scenario.remarks if note.startswith("test rows are given")]
    assert "1 of 2 clients" in line
    assert "for B they are drawn" in line
    data_of_both = from_clients(
        {"A": (x, y), "B": (x + 1, y)}, test=dict.fromkeys("AB", (x[:10] + 2, y[:10]))
    )
    scenario = Scenario.prepare(Config(method="fedavg", data=data_of_both, lr=0.1, rounds=1))
    assert not [note for note in scenario.remarks if note.startswith("test rows are given")]
