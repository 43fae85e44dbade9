"""Times to an event from files, arrays and custom functions: accepted and refused data, and
preprocessing.
"""

import numpy as np
import pytest

from pomona import Config
from pomona.core.errors import ConfigError, DataError
from pomona.data import data_settings, read
from pomona.data.targets import edges
from pomona.scenario import Scenario

HEADER = "age,days,died\n"


def settings(path, **changes):
    keys = {"name": "table", "path": path, "targets": "survival", "label_columns": ["days", "died"]}
    return data_settings(**{**keys, **changes})


def csv(tmp_path, *rows):
    path = tmp_path / "patients.csv"
    path.write_text(HEADER + "".join(f"{row}\n" for row in rows))
    return path


ROWS = [f"{40 + k},{10 * (k + 1)},{k % 2}" for k in range(20)]


def function(_settings):
    y = np.column_stack([np.arange(1, 31), np.arange(30) % 2])
    return np.random.Generator(np.random.Philox(0)).normal(size=(30, 2)), y


def test_a_table_of_times(tmp_path):
    data = read(settings(csv(tmp_path, *ROWS)))
    assert data.targets == "survival"
    assert data.y.dtype == np.float32
    assert data.y[3].tolist() == [40, 1]
    # until a partition says which rows are for training
    assert (data.labels, data.edges) == ((), ())
    assert not any("read as an event" in note for note in data.notes)
    path = tmp_path / "patients.csv"
    path.write_text(path.read_text().replace("died", "censored"))
    notes = read(settings(path, label_columns=["days", "censored"])).notes
    assert any("label column censored: 1 is read as an event" in note for note in notes)


def test_edges_are_quantiles_of_event_times_of_training_rows(tmp_path):
    keys = settings(csv(tmp_path, *ROWS), intervals=4).model_dump(exclude_unset=True)
    scenario = Scenario.prepare(Config(data=keys, clients=2, lr=0.1, model="logistic"))
    rows = np.concatenate([c.train for c in scenario.partition.clients])
    y = scenario.dataset.y[rows]
    times = np.sort(y[y[:, 1] > 0, 0])
    expected = sorted({float(times[int(np.ceil(q * len(times) / 4)) - 1]) for q in (1, 2, 3, 4)})
    assert list(scenario.dataset.edges) == expected
    assert scenario.dataset.n_outputs == len(expected)
    assert set(expected) <= set(times.tolist())
    x = scenario.dataset.x[rows]
    # features are learnt of the same rows
    assert scenario.dataset.shift == pytest.approx(x.mean(0).tolist())


def test_edges_are_fewer_where_times_are_alike():
    y = np.array([[5, 1], [5, 1], [5, 1], [7, 1], [9, 0]], np.float32)
    assert edges(y, 10) == (5.0, 7.0)
    assert edges(y[:1], 10) == (5.0,)


def test_given_edges_are_taken(tmp_path):
    data = settings(csv(tmp_path, *ROWS), time_edges=(30, 90.5)).model_dump(exclude_unset=True)
    scenario = Scenario.prepare(Config(data=data, clients=2, lr=0.1, model="logistic"))
    assert scenario.dataset.edges == (30.0, 90.5)


def test_arrays_and_own_functions(tmp_path):
    x, y = function(None)
    np.savez(tmp_path / "own.npz", x=x.astype(np.float32), y=y)
    for keys in (
        {"name": "arrays", "path": tmp_path / "own.npz"},
        {"name": f"{__name__}:function"},
    ):
        data = read(data_settings(**keys, targets="survival"))
        assert data.y.tolist() == y.tolist()
        assert data.targets == "survival"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            "50,0,1",
            (
                r"label column days: 1 of 21 are not times above 0, first '0' in line 22; leave "
                r"these "
                r"rows out"
            ),
        ),
        ("50,-3,1", r"days: 1 of 21 are not times above 0, first '-3' in line 22"),
        ("50,inf,1", r"days: 1 of 21 are not times above 0, first 'inf' in line 22"),
        ("50,,1", r"days: 1 of 21 are not times above 0"),
        ("50,3,2", r"label column died: 1 of 21 are not flags 0 or 1, first '2' in line 22"),
        ("50,3,yes", r"label column died: 1 of 21 are not flags 0 or 1, first 'yes' in line 22"),
    ],
)
def test_a_table_that_is_wrong_says_where(tmp_path, row, message):
    with pytest.raises(DataError, match=message) as fault:
        read(settings(csv(tmp_path, *ROWS, row)))
    assert "\n" not in str(fault.value)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([[1, 1], [0, 0]], r"1 rows hold times that are not above 0, first row 1"),
        ([[1, 1], [-1, 0]], r"1 rows hold times that are not above 0, first row 1"),
        ([[1, 1], [np.nan, 0]], r"1 rows hold NaN"),
        ([[1, 1], [2, 0.5]], r"1 rows hold events other than 0 and 1, first row 1"),
        ([1.0, 2.0], r"survival needs \(N, 2\), time and event"),
        ([[1, 1, 0], [2, 0, 1]], r"survival needs \(N, 2\), time and event"),
    ],
)
def test_arrays_that_are_wrong_say_where(tmp_path, y, message):
    np.savez(tmp_path / "own.npz", x=np.zeros((2, 3), np.float32), y=np.array(y))
    with pytest.raises(DataError, match=message):
        read(data_settings(name="arrays", path=tmp_path / "own.npz", targets="survival"))


def test_one_column_is_not_enough(tmp_path):
    with pytest.raises(
        ConfigError, match=r"there are 1 label columns; set data.label_columns to two: time, event"
    ):
        read(settings(csv(tmp_path, *ROWS), label_columns=["days"]))


def test_all_censored(tmp_path):
    data = settings(csv(tmp_path, *(f"{row[:-1]}0" for row in ROWS)))
    read(data)  # a silo may have no event
    for edges_given in ((), (50.0, 100.0)):
        section = data.model_copy(update={"time_edges": edges_given}).model_dump(exclude_unset=True)
        with pytest.raises(
            DataError, match=r"none of the \d+ training rows has an event \(1\), all are censored"
        ):
            Scenario.prepare(Config(data=section, clients=2, lr=0.1, model="logistic"))


def test_settings_that_do_not_fit(tmp_path):
    path = csv(tmp_path, *ROWS)
    with pytest.raises(ConfigError, match="time_edges must ascend"):
        settings(path, time_edges=(3.0, 3.0))
    with pytest.raises(ConfigError, match=r"data\.classes names classes or targets"):
        read(settings(path, classes=("time", "event")))


def test_with_privacy_edges_are_given_and_not_learnt(tmp_path):
    privacy = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "delta": 1e-4}
    privacy["acknowledge"] = [
        "sample-counts",
        "metrics",
        "feature-moments",
        "training-loss",
        "unlimited-epsilon",
    ]
    data = settings(csv(tmp_path, *ROWS)).model_dump(exclude_unset=True)
    run = {"clients": 2, "lr": 0.1, "model": "logistic", "method": "fedavg", "privacy": privacy}
    with pytest.raises(ConfigError, match=r"data\.time_edges must be given"):
        Scenario.prepare(Config(data=data, **run))
    assert Scenario.prepare(Config(data=data | {"time_edges": (50.0,)}, **run)).dataset.edges == (
        50.0,
    )
