"""Pages of many clients and classes: a bounded number of rows and marks, and the names of the files
with the rest.
"""

import re
import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from report_results import result

from pomona.core.errors import DataError
from pomona.core.table import Table
from pomona.data import npz
from pomona.record import predictions
from pomona.results import table
from pomona.results.figures import series
from pomona.results.run_numbers import runs
from pomona.results.tables.outcomes import MOST_ROWS
from pomona.results.text.narrative import basis
from pomona.results.web import page_data
from pomona.results.web.page_data import omitted_quantities, payload
from pomona.results.web.report_page import bounded, client_tables, page

CLIENTS = MOST_ROWS + 30


def test_of_many_clients_the_page_lists_those_that_fare_worst():
    made = runs([result("fedavg", n=CLIENTS, rounds=2, classes=2)])
    (table,) = client_tables(made)
    worst = sorted(made[0].values.values())[:MOST_ROWS]
    assert len(table.rows) == MOST_ROWS
    assert table.omitted == 30
    assert sorted(made[0].client(c) for c, v in made[0].values.items() if v <= worst[-1]) == sorted(
        name for name, _ in table.rows
    )
    text = page(made)
    assert "30 are left out; clients.csv in the run's folder has all" in text
    assert text.count('<th scope="row">clinic') == MOST_ROWS


def test_up_to_the_bound_nothing_is_left_out():
    (table,) = client_tables(runs([result("fedavg", n=MOST_ROWS, rounds=2, classes=2)]))
    assert (len(table.rows), table.omitted) == (MOST_ROWS, 0)
    small = Table("t", "T", ["How."], ["a"], [["x"]] * MOST_ROWS)
    assert bounded(small) is small


def test_a_table_says_how_many_rows_it_had():
    cut = bounded(Table("t", "T", ["How."], ["a"], [[str(k)] for k in range(MOST_ROWS + 1000)]))
    assert [row[0] for row in cut.rows] == [str(k) for k in range(MOST_ROWS)]
    assert cut.notes[0] == "How."
    assert re.match("The first 200 of 1,200 rows; clients.csv", cut.notes[1])


@pytest.fixture
def small_pages(monkeypatch):
    """Pages that draw at most 20 classes, and 200 label counts."""
    monkeypatch.setattr(page_data, "MAX_CLASSES", 20)
    monkeypatch.setattr(page_data, "MARKS", 200)


@pytest.mark.usefixtures("small_pages")
def test_what_is_too_large_to_draw_is_named_with_its_file():
    made = runs([result("fedavg", n=11, rounds=1, classes=21)])  # 231 label counts
    data = payload(made, None)
    assert data["partitions"] == {}
    assert data["runs"][0]["confusion"] is None
    confused, labels = omitted_quantities(made)
    assert "21 classes" in confused
    assert confused.endswith("writes confusion.csv.")
    assert "11 clients in 21 classes" in labels
    assert labels.endswith("writes labels.csv.")
    assert labels in page(made)


@pytest.mark.usefixtures("small_pages")
def test_what_can_be_drawn_is_drawn():
    made = runs([result("fedavg", n=10, rounds=1, classes=20)])
    data = payload(made, None)
    assert len(data["partitions"]) == 1
    assert len(data["runs"][0]["confusion"]["counts"]) == 20
    assert omitted_quantities(made) == []


def lines_run(work) -> Counter[tuple[str, int]]:
    """Number of executions of each line of the package, counting iterations of a comprehension."""
    counted: Counter[tuple[str, int]] = Counter()

    def line(frame, event, _):
        if event == "line":
            counted[frame.f_code.co_filename, frame.f_lineno] += 1
        return line

    before = sys.gettrace()
    sys.settrace(lambda frame, *_: line if "/pomona/" in frame.f_code.co_filename else None)
    try:
        work()
    finally:
        sys.settrace(before)
    return counted


def test_work_is_linear_in_the_number_of_clients():
    def work(n):
        # Fewer clients than rows of a table, beyond which a quadratic part might be left out as
        # well.
        made = [result(method, n=n, rounds=1, classes=2) for method in ("separate", "fedavg")]
        return lines_run(lambda: (page(runs(made)), basis(runs(made)), table(made)))

    work(2)  # what is made once a process
    few, many = work(40), work(80)
    # A line that runs once for each pair runs four times as often with twice as many clients,
    # others twice.
    assert max(few.values()) > 40
    assert [at for at, times in many.items() if times > 3 * few[at] and times > 80 * 80 / 4] == []


def test_an_archive_of_answers_is_read_once(tmp_path, monkeypatch):
    made = result("fedavg", n=6, rounds=1, classes=2)
    predictions.save(tmp_path, made.answers, {0: np.arange(len(made.answers[0][1]))})
    read = []
    archive = npz.archive
    monkeypatch.setattr(npz, "archive", lambda path: (read.append(path), archive(path))[1])
    kept = replace(made, answers={}, folder=tmp_path)
    for client, (outputs, targets) in made.answers.items():
        found = kept.predictions(client)
        assert np.array_equal(found[0], outputs)
        assert np.array_equal(found[1], targets)
    assert kept.groups(0).tolist() == list(range(len(made.answers[0][1])))
    assert (kept.groups(1), kept.predictions(6)) == (None, None)
    assert len(read) == 1


def test_a_matrix_of_more_clients_than_are_drawn_is_named(monkeypatch):
    made = runs([result("apple", n=5, rounds=2, classes=2)])
    assert "dr" in {one["name"] for one in payload(made, None)["runs"][0]["learned"]}
    assert omitted_quantities(made) == []
    for module in (series, page_data):
        monkeypatch.setattr(module, "MATRIX", 4)
        monkeypatch.setattr(module, "order", None)  # is not sorted
    assert payload(made, None)["runs"][0]["learned"] == []
    (line,) = omitted_quantities(made)
    assert "5 clients" in line
    assert "more than 4" in line
    assert "is not drawn of more than 4; events.jsonl" in page(made)


@pytest.mark.parametrize("targets", [[-1, 0], [0, 10**9], [[0], [1]], [0.0, 1.0]])
def test_answers_to_other_targets_than_classes_are_no_answers(targets, tmp_path):
    """Class 10^9 took 8 GB, to be counted; the others were tracebacks."""
    predictions.save(tmp_path, {0: (np.zeros((2, 3), np.float32), np.array(targets))})
    with pytest.raises(DataError, match="no answers of client 0 that fit their targets"):
        predictions.StoredPredictions(tmp_path).answers(0)
    predictions.save(tmp_path, {0: (np.zeros((2, 3), np.float32), np.array([0, 2]))})
    assert predictions.StoredPredictions(tmp_path).answers(0)[1].tolist() == [0, 2]
