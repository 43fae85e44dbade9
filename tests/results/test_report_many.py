"""Pages of many clients and classes: a bounded number of rows and marks, and the names of the files with the rest."""

import re

from report_results import result

from pomona.core.table import Table
from pomona.results.run_numbers import runs
from pomona.results.tables.outcomes import MOST_ROWS
from pomona.results.web.page_data import left_out, payload
from pomona.results.web.report_page import bounded, client_tables, page

CLIENTS = MOST_ROWS + 30


def test_of_many_clients_the_page_lists_those_that_fare_worst():
    made = runs([result("fedavg", n=CLIENTS, rounds=2, classes=2)])
    (table,) = client_tables(made)
    worst = sorted(made[0].values.values())[:MOST_ROWS]
    assert len(table.rows) == MOST_ROWS
    assert table.left_out == 30
    assert sorted(made[0].client(c) for c, v in made[0].values.items() if v <= worst[-1]) == sorted(
        name for name, _ in table.rows
    )
    text = page(made)
    assert "30 are left out, clients.csv in the run's folder has all" in text
    assert text.count('<th scope="row">clinic') == MOST_ROWS


def test_up_to_the_bound_nothing_is_left_out():
    (table,) = client_tables(runs([result("fedavg", n=MOST_ROWS, rounds=2, classes=2)]))
    assert (len(table.rows), table.left_out) == (MOST_ROWS, 0)
    small = Table("t", "T", ["How."], ["a"], [["x"]] * MOST_ROWS)
    assert bounded(small) is small


def test_a_table_says_how_many_rows_it_had():
    cut = bounded(Table("t", "T", ["How."], ["a"], [[str(k)] for k in range(MOST_ROWS + 1000)]))
    assert [row[0] for row in cut.rows] == [str(k) for k in range(MOST_ROWS)]
    assert cut.notes[0] == "How."
    assert re.match("The first 200 of 1,200 rows; clients.csv", cut.notes[1])


def test_what_is_too_large_to_draw_is_named_with_its_file():
    made = runs([result("fedavg", n=101, rounds=1, classes=201)])  # 20,301 counts of labels
    data = payload(made, None)
    assert data["partitions"] == {}
    assert data["runs"][0]["confusion"] is None
    confused, labels = left_out(made)
    assert "201 classes" in confused
    assert confused.endswith("writes confusion.csv.")
    assert "101 clients hold of 201 classes" in labels
    assert labels.endswith("writes labels.csv.")
    assert labels in page(made)


def test_what_can_be_drawn_is_drawn():
    made = runs([result("fedavg", n=100, rounds=1, classes=200)])
    data = payload(made, None)
    assert len(data["partitions"]) == 1
    assert len(data["runs"][0]["confusion"]["counts"]) == 200
    assert left_out(made) == []
