"""Warnings about data and partitions, one line each."""

from dataclasses import replace

import numpy as np
import pytest
from partition_data import NO_VALIDATION, divided, table

from pomona.core.errors import DataError
from pomona.data.dataset import Owners
from pomona.partition import Iid, Natural, divide
from pomona.partition.divergence import remarks
from pomona.partition.split_notes import Clients, split_notes

PLAIN = table([30, 30], [10, 10])


def notes(dataset, clients=2, **fields):
    dataset = replace(dataset, **fields)
    return remarks(dataset, divided(dataset, Iid(), clients))


def test_data_without_oddities_need_no_remark():
    assert notes(PLAIN) == []
    assert notes(PLAIN, notes=("cat: 1 file .txt is not read (a.txt)",)) == [
        "cat: 1 file .txt is not read (a.txt)"
    ]


def test_rows_that_are_dealt_to_others_than_their_owners():
    data = owned((20, 20))
    assert notes(data) == [
        "rows have owners (site-0, site-1), and partition iid deals them to other clients; "
        "partition.name = natural keeps them together"
    ]
    assert notes(data, 1) == []
    of_file = replace(divided(data, Iid(), 2), recipe={"fingerprint": "of a file"})
    assert remarks(data, of_file) == []


def test_classes():
    assert notes(table([30], [10])) == [
        "all rows are of class class-0: there is nothing to learn, and accuracy is 100 %"
    ]
    assert notes(table([0, 30, 30], [0, 10, 10])) == [
        "no row is of class class-0; numbers of classes start at 0"
    ]
    assert notes(table([30, 30, 2], [10, 10, 1])) == [
        "classes with fewer than 5 rows: class-2 (3); some clients or parts will not have them. If "
        "they are typing errors, correct the rows"
    ]
    assert notes(PLAIN, classes=("Yes", "yes")) == [
        "classes that differ in capital letters, blanks, zeros or the form of characters only: "
        "Yes, yes; if they are one, write them the same way"
    ]
    ages = table([1] * 30, [1] * 10 + [0] * 20)
    assert notes(ages) == [
        "40 rows have 30 classes; for measurements set data.targets = regression"
    ]


def test_flags_that_are_never_or_always_set():
    flags = np.zeros((80, 3), np.float32)
    flags[::2, 0] = flags[:, 2] = 1
    line = "flags that are the same in all rows: {}; there is nothing to learn for them"
    assert notes(PLAIN, classes=(), y=flags) == [line.format("label 1, label 2")]
    assert notes(PLAIN, classes=(), y=flags, labels=("a", "b", "c")) == [line.format("b, c")]
    assert notes(PLAIN, classes=(), y=flags + np.arange(80, dtype=np.float32)[:, None]) == []


def owned(counts):
    """A table whose owner i has this many rows, without test rows of their own."""
    client = np.repeat(np.arange(len(counts)), counts)
    names = tuple(f"site-{i}" for i in range(len(counts)))
    data = table([len(client) // 2, len(client) - len(client) // 2], [0, 0])
    return replace(data, owners=Owners(names, client, np.zeros(len(client), np.int8)))


@pytest.mark.parametrize(
    ("counts", "lines"),
    [
        ((10, 10, 10), []),
        ((10, 1, 10), ["1 of 3 clients have no test rows and are in no mean: site-1"]),
        ((10, *[1] * 7), ["7 of 8 clients have no test rows and are in no mean: "
                          "site-1, site-2, site-3, site-4, site-5 and 2 more"]),
        ((1,) * 10, [("no client has test rows, so there are no test figures; give more rows a "
                     "client, or separate test rows")]),
    ],
)  # fmt: skip
def test_clients_without_test_rows(counts, lines):
    data = owned(counts)
    clients = Clients(data.owners.names, range(len(counts)))
    assert split_notes(data, divided(data, Natural(), len(counts)), clients)[-1:] == lines


def test_iid_says_how_many_clients_it_can_serve():
    """Each class is dealt within one row of its equal share, so that the largest class has a row
    for each of 30.
    """
    data = table([30, 20], [10, 10])
    assert all(len(c.train) for c in divide(data, NO_VALIDATION, Iid(), 30, 0).clients)
    advice = (
        "no training rows; every class is dealt out in equal shares, so use at most as many "
        "clients as the largest"
    )
    with pytest.raises(DataError, match=advice):
        divide(data, NO_VALIDATION, Iid(), 51, 0)
