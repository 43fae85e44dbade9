"""Pages of many clients and classes: a bounded number of rows and marks, and the names of the files
with the rest.
"""

import re
import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from learned_results import showing
from report_results import comparison, result

from pomona.core.errors import DataError
from pomona.core.rng import stream
from pomona.core.table import Table
from pomona.data import npz
from pomona.record import predictions
from pomona.results import table
from pomona.results.figures import series
from pomona.results.figures.series import recorded
from pomona.results.run_numbers import runs
from pomona.results.tables.outcomes import MOST_ROWS
from pomona.results.text.narrative import basis
from pomona.results.web import report_page
from pomona.results.web.report_page import bounded, client_tables, omitted_quantities, page, write

CLIENTS = MOST_ROWS + 30


def test_of_many_clients_the_page_lists_those_that_fare_worst():
    prepared = runs([result("fedavg", n=CLIENTS, rounds=2, classes=2)])
    (table,) = client_tables(prepared)
    worst = sorted(prepared[0].values.values())[:MOST_ROWS]
    assert len(table.rows) == MOST_ROWS
    assert table.omitted == 30
    assert sorted(
        prepared[0].client(c) for c, v in prepared[0].values.items() if v <= worst[-1]
    ) == sorted(name for name, _ in table.rows)
    text = page(prepared)
    assert "30 are left out; clients.csv in the run's folder has all" in text
    assert text.count('<th scope="row">clinic') == MOST_ROWS


def test_up_to_the_bound_nothing_is_left_out():
    (table,) = client_tables(runs([result("fedavg", n=MOST_ROWS, rounds=2, classes=2)]))
    assert (len(table.rows), table.omitted) == (MOST_ROWS, 0)
    small = Table("t", "T", ["How."], ["a"], [["x"]] * MOST_ROWS)
    assert bounded(small) is small


def test_a_table_says_how_many_rows_it_had():
    brief = bounded(Table("t", "T", ["How."], ["a"], [[str(k)] for k in range(MOST_ROWS + 1000)]))
    assert [row[0] for row in brief.rows] == [str(k) for k in range(MOST_ROWS)]
    assert brief.notes[0] == "How."
    assert re.match("The first 200 of 1,200 rows; clients.csv", brief.notes[1])


def learning(method: str, n: int, rounds: int):
    """A run with two matrices and a number per client and layer, each round."""
    base = showing(
        [
            {
                "weights": np.eye(n),
                "affinity": stream(t, method).random((n, n)),
                "gates": stream(t, "gates").random((n, 8)),
            }
            for t in range(rounds)
        ],
        n=n,
    )
    return replace(base, config={**base.config, "method": {"name": method}})


@pytest.mark.long
def test_pages_stay_small(tmp_path):
    # Twelve clients, 160 rounds, four methods of which two show more than any method does.
    several = [
        *comparison(n=12, rounds=160)[:2],
        *(learning(m, 12, 160) for m in ("fedfomo", "apple")),
    ]
    assert write(several, tmp_path / "usual").stat().st_size < 1.2e6
    # 200 clients for 20 rounds: 1.6 million numbers in two matrices.
    assert write([learning("fedfomo", 200, 20)], tmp_path / "large").stat().st_size < 2e6


def lines_run(work) -> Counter[tuple[str, int]]:
    """Number of executions of each line of the package, counting iterations of a comprehension."""
    counted: Counter[tuple[str, int]] = Counter()

    def line(frame, event, _):
        if event == "line":
            counted[frame.f_code.co_filename, frame.f_lineno] += 1
        return line

    previous_trace = sys.gettrace()
    sys.settrace(lambda frame, *_: line if "/pomona/" in frame.f_code.co_filename else None)
    try:
        work()
    finally:
        sys.settrace(previous_trace)
    return counted


def test_work_is_linear_in_the_number_of_clients():
    def work(n):
        # Fewer clients than rows of a table, beyond which a quadratic part might be left out as
        # well.
        results = [result(method, n=n, rounds=1, classes=2) for method in ("separate", "fedavg")]
        return lines_run(lambda: (page(runs(results)), basis(runs(results)), table(results)))

    work(2)  # what is made once a process
    small, large = work(40), work(80)
    # A line that runs once for each pair runs four times as often with twice as many clients,
    # others twice.
    assert max(small.values()) > 40
    assert [k for k, times in large.items() if times > 3 * small[k] and times > 80 * 80 / 4] == []


def test_an_archive_of_answers_is_read_once(tmp_path, monkeypatch):
    original = result("fedavg", n=6, rounds=1, classes=2)
    predictions.save(tmp_path, original.answers, {0: np.arange(len(original.answers[0][1]))})
    read = []
    archive = npz.archive
    monkeypatch.setattr(npz, "archive", lambda path: (read.append(path), archive(path))[1])
    reloaded = replace(original, answers={}, folder=tmp_path)
    for client, (outputs, targets) in original.answers.items():
        answers = reloaded.predictions(client)
        assert np.array_equal(answers[0], outputs)
        assert np.array_equal(answers[1], targets)
    assert reloaded.groups(0).tolist() == list(range(len(original.answers[0][1])))
    assert (reloaded.groups(1), reloaded.predictions(6)) == (None, None)
    assert len(read) == 1


def test_a_matrix_of_more_clients_than_are_drawn_is_named(monkeypatch):
    prepared = runs([result("apple", n=5, rounds=2, classes=2)])
    assert "dr" in recorded(prepared[0])
    assert omitted_quantities(prepared) == []
    for module in (series, report_page):
        monkeypatch.setattr(module, "MATRIX", 4)
    assert "dr" not in recorded(prepared[0])
    (line,) = omitted_quantities(prepared)
    assert "5 clients" in line
    assert "only up to 4" in line
    assert "is drawn only up to 4 clients; events.jsonl" in page(prepared)


@pytest.mark.parametrize("targets", [[-1, 0], [0, 10**9], [[0], [1]], [0.0, 1.0]])
def test_answers_to_other_targets_than_classes_are_no_answers(targets, tmp_path):
    """Class 10^9 took 8 GB, to be counted; the others were tracebacks."""
    predictions.save(tmp_path, {0: (np.zeros((2, 3), np.float32), np.array(targets))})
    with pytest.raises(DataError, match="no answers of client 0 that fit their targets"):
        predictions.StoredPredictions(tmp_path).answers(0)
    predictions.save(tmp_path, {0: (np.zeros((2, 3), np.float32), np.array([0, 2]))})
    assert predictions.StoredPredictions(tmp_path).answers(0)[1].tolist() == [0, 2]
