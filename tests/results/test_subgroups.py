"""Results by the values of a named column: counted by hand, and undefined where the samples do not
define them.
"""

import re
from dataclasses import replace

import numpy as np
import pytest

import pomona
from pomona.core.rng import stream
from pomona.data.dataset import Dataset, Subgroups
from pomona.metrics.metric import ACCURACY, METRICS
from pomona.results.gain_presentation import MINUS
from pomona.results.run_numbers import runs
from pomona.results.tables.optional import Pool, pooled, subgroups
from pomona.results.web.report_page import page
from pomona.tasks import task_of

NAME = __name__


def reader(settings):
    """A class that column 0 determines in subgroup "easy", and not in subgroup "hard"; "rare" has
    one test row.
    """
    draw = stream(5, "subgroups test")
    n = 301
    x = draw.normal(size=(n, 3)).astype(np.float32)
    number = draw.integers(0, 2, n)
    y = np.where(number == 0, x[:, 0] > 0, draw.integers(0, 2, n)).astype(np.int64)
    x[:, 0] *= 5
    number[-1] = 2
    return Dataset(
        "own",
        "table",
        x,
        y,
        ("no", "yes"),
        200,
        subgroups=Subgroups("site", ("easy", "hard", "rare"), number),
    )


def silent(settings):
    """The same without subgroups."""
    return replace(reader(settings), subgroups=None)


@pytest.fixture(scope="module")
def result():
    return pomona.run(
        pomona.Config(
            method="fedavg", data={"name": f"{NAME}:reader"}, clients=3, rounds=5, lr=0.5, workers=1
        )
    )


def test_each_subgroup_is_counted_over_all_clients(result):
    (run,) = runs([result])
    record = result.about["subgroups"]
    assert (record["column"], record["names"]) == ("site", ["easy", "hard", "rare"])
    table = subgroups([run])
    assert table.title == "Subgroups by site"
    right = {name: [] for name in record["names"]}
    for client, indices in enumerate(record["test"]):
        outputs, targets = result.predictions(client)
        for k, hit in zip(indices, outputs.argmax(1) == targets, strict=True):
            right[record["names"][k]].append(hit)
    rows = {row[0]: row for row in table.rows}
    assert list(rows) == ["easy", "hard", "rare"]
    for name, hits in right.items():
        assert rows[name][2] == str(len(hits))
        assert rows[name][3].startswith(f"{100 * np.mean(hits):.2f}")
        other_hits = [hit for key, values in right.items() if key != name for hit in values]
        difference = f"{100 * (np.mean(hits) - np.mean(other_hits)):+.2f}"
        assert rows[name][4].startswith(difference.replace("-", MINUS))
    low = float(rows["easy"][4].partition("(")[2].partition(" ")[0])
    assert low > 0  # what a column tells is learnt, what nothing tells is not
    assert rows["rare"][1] == "1"
    assert [cell.count("(") for cell in rows["rare"][3:]] == [0, 0]  # one sample tells no spread


@pytest.mark.parametrize(("metric", "rows"), [(ACCURACY, 5), (METRICS["auroc"], 20)])
def test_intervals_need_six_samples_of_both_sides_and_a_ranking_six_of_both_answers(metric, rows):
    """Of 120 samples the first ``rows``, of which 5 have the rarer answer: with one more of it
    there is an interval.
    """
    y = np.arange(120) % 2
    y[:rows] = np.arange(rows) < 5
    scores = stream(0, "few").random(120)
    pool = Pool(
        metric, task_of("classes"), np.stack([1 - scores, scores], 1), y, y * 0, y * 0, False
    )
    y[rows] = 1
    for size, intervals in ((rows, 0), (rows + 1, 1)):
        chosen = np.arange(120) < size
        for side in (chosen, ~chosen):
            assert [cell.count("(") for cell in pool.cells(side)][1] == intervals
        assert pool.cells(chosen)[0].count("(") == intervals
    assert replace(pool, clustered=True).cells(chosen)[0].count("(") == 0


def test_two_subgroups_differ_by_the_same_with_the_other_sign():
    """The difference of one from all others is that of these, times -1, with its interval."""
    y, chosen = np.arange(90) % 2, np.arange(90) % 3 == 0
    scores = stream(0, "mirror").random(90) + y / 2
    pool = Pool(
        METRICS["auroc"], task_of("classes"), np.stack([-scores, scores], 1), y, y, y, False
    )
    one, other = (
        re.findall(r"[-+][.0-9]+", pool.cells(side)[1].replace(MINUS, "-"))
        for side in (chosen, ~chosen)
    )
    value, low, high = map(float, one)
    assert low < value < high
    assert [float(text) for text in other] == [-value, -high, -low]


def test_where_no_interval_is_shown_none_is_computed(monkeypatch):
    """Too few samples, or several of one group: the metric is computed once, at weights of one."""
    rows = []
    monkeypatch.setattr(
        "pomona.results.tables.optional.measured",
        lambda *arguments: rows.append(len(arguments[-1])) or np.zeros(len(arguments[-1])),
    )
    y = np.arange(40) % 2
    pool = Pool(ACCURACY, task_of("classes"), np.eye(2)[y], y, y * 0, y * 0, False)
    pool.cells(np.arange(40) < 5)
    replace(pool, clustered=True).cells(np.arange(40) < 20)
    assert rows == [1] * 4


def test_where_all_are_right_neither_they_nor_the_difference_have_an_interval():
    """Resamples of samples that are all right are all right: no spread, though others may be
    wrong.
    """
    y = np.arange(40) % 2
    right = np.eye(2)[np.where(np.arange(40) % 3 > 0, y, 1 - y)]
    right[:10] = np.eye(2)[y[:10]]
    pool = Pool(ACCURACY, task_of("classes"), right, y, y * 0, y * 0, False)
    wrong_share = sum(k % 3 == 0 for k in range(10, 40)) / 30
    share, difference = pool.cells(np.arange(40) < 10)
    assert (share, difference) == ("100.00", f"{100 * wrong_share:+.2f}")


def test_the_page_shows_them(result):
    assert "Subgroups by site" in page(runs([result]))


def test_a_metric_that_a_subgroup_does_not_define_is_a_dash(result):
    ranked = pomona.run(
        pomona.Config(
            method="fedavg",
            data={"name": f"{NAME}:reader"},
            clients=2,
            rounds=1,
            lr=0.5,
            metric="auroc",
        )
    )
    rows = {row[0]: row for row in subgroups(runs([ranked])).rows}
    assert rows["rare"][3] == "-"  # one sample ranks nothing
    assert rows["easy"][3] != "-"


def test_without_a_column_there_is_no_table():
    result = pomona.run(
        pomona.Config(
            method="fedavg", data={"name": f"{NAME}:silent"}, clients=2, rounds=1, lr=0.5, workers=1
        )
    )
    (run,) = runs([result])
    assert pooled(run) is None
    assert subgroups([run]).rows == []
