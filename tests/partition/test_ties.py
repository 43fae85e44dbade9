"""Ties are drawn: the order of rows in a file decides nothing."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from partition_data import divided

from pomona.core.rng import stream
from pomona.data import data_settings
from pomona.data.dataset import Dataset, RowGroups
from pomona.partition import Iid, Pathological, divide
from pomona.partition.recipe import hold_out

BY_TIME = data_settings(test_share=0.25, validation_share=0.25)


def rows(labels, times=None, groups=None):
    """A table with these classes, times and groups of its rows."""
    y = np.asarray(labels, np.int64)
    return Dataset(
        "rows",
        "table",
        np.arange(len(y), dtype=np.float32)[:, np.newaxis],
        y,
        ("well", "ill"),
        len(y),
        times=None if times is None else np.asarray(times, float),
        groups=None if groups is None else RowGroups("patient", np.asarray(groups)),
    )


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("ascending", [True, False])
def test_a_year_is_tested_by_a_draw_and_not_by_the_order_of_the_file(ascending, grouped):
    """200 rows of 2021, 40 % ill, sorted by class; 50 of 200 are for testing, 50 for validation."""
    y = np.sort(np.arange(200) % 5 < 2)[:: 1 if ascending else -1]
    data = rows(y, np.full(200, 2021.0), np.arange(200) if grouped else None)
    client = divide(data, BY_TIME, Iid(), 1, 0).clients[0]
    shares = [data.y[getattr(client, split)].mean() for split in ("train", "validation", "test")]
    assert shares == pytest.approx([0.4] * 3, abs=0.03)


def test_rows_later_than_the_tied_time_are_all_tested():
    times = np.array([1.0, 3, 2, 2, 2, 2, 3, 1])
    chosen = hold_out(np.arange(8), np.zeros(8, np.int64), 0.5, stream(0, "t"), None, times)
    assert {1, 6} < set(chosen.tolist()) <= {1, 2, 3, 4, 5, 6}
    assert len(chosen) == 4


def test_every_row_of_a_tied_time_is_tested_equally_often():
    """Four of ten rows of one time, over 2,000 seeds: 800 times each, 4.5 deviations of 22."""
    labels, times = np.array([0] * 7 + [1] * 3), np.zeros(10)
    often = np.bincount(
        np.concatenate(
            [
                hold_out(np.arange(10), labels, 0.4, stream(seed, "t"), None, times)
                for seed in range(2000)
            ]
        ),
        minlength=10,
    )
    assert abs(often - 800).max() < 100


@given(st.lists(st.integers(0, 5), max_size=12), st.floats(0, 1), st.booleans())
@settings(max_examples=80)
def test_the_latest_are_held_out_down_to_no_row(times, share, grouped):
    stamps, n = np.array(times, float), len(times)
    groups = np.arange(n) // 2 if grouped else None
    chosen = hold_out(np.arange(n), np.zeros(n, np.int64), share, stream(0, "t"), groups, stamps)
    unit = np.arange(n) if groups is None else groups
    units = len(set(unit.tolist()))
    size = min(max(round(share * units), int(share > 0)), max(units - 1, 0))
    assert len(set(unit[chosen].tolist())) == size
    latest = {u: stamps[unit == u].max() for u in set(unit.tolist())}
    tested = {u: t for u, t in latest.items() if u in set(unit[chosen].tolist())}
    trained = [t for u, t in latest.items() if u not in tested]
    assert not tested or not trained or min(tested.values()) >= max(trained)


def test_a_patient_of_two_classes_goes_to_either_client():
    """100 patients with one row of each class; one client has each class."""
    data = rows(np.arange(200) % 2, groups=np.arange(200) // 2)
    partition = divided(replace(data, n_train=200), Pathological(classes_per_client=1), 2)
    patients = [len(client.train) + len(client.test) for client in partition.clients]
    assert sum(patients) == 200
    assert min(patients) > 60  # 100 of each on average, and 10 is one deviation of as many coins
