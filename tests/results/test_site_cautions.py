"""Who took part: rounds by client, and a caution where the largest one was out; classes that are
too rare for an AUROC.
"""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from report_results import result

from pomona.metrics.metric import METRICS
from pomona.results.run_numbers import runs
from pomona.results.tables.participation import participation
from pomona.results.text import joint_cautions
from pomona.results.text.cautions import cautions

SIZES = [10, 60, 30]


def attended(rounds_of_largest, method="fedavg", **settings):
    """Four rounds of three clients, the second with most samples and in some rounds only."""
    base = result(method, n=3, rounds=4)
    rows = [
        row if row.round in rounds_of_largest else replace(row, cohort=(0, 2), info={})
        for row in base.rounds
    ]
    metadata = {**base.about, "sizes": {**base.about["sizes"], "train": SIZES}}
    return replace(base, rounds=rows, about=metadata, config={**base.config, **settings})


def test_rounds_and_share_of_each_client_of_each_run():
    results = [attended({1}), attended({1, 2, 3, 4}, "separate")]
    table = participation(runs(results))
    assert [row[1:3] for row in table.rows] == [["10", "10.0"], ["60", "60.0"], ["30", "30.0"]]
    assert [row[3:] for row in table.rows] == [["4", "4"], ["1", "4"], ["4", "4"]]


def test_no_table_where_everyone_took_part():
    assert not participation(runs([attended({1, 2, 3, 4})])).rows


def test_a_caution_names_the_largest_client_its_rounds_and_share():
    results = [attended({1}), attended({1, 2, 3, 4}, "separate")]
    largest = results[0].about["clients"][1]
    [text] = [line for line in cautions(runs(results)) if "missed" in line]
    assert largest in text
    assert "3 of 4 rounds" in text
    assert "60%" in text.replace("\N{NO-BREAK SPACE}", "")
    assert not [line for line in cautions(runs(results[1:])) if "missed" in line]


def test_who_was_drawn_is_no_caution():
    sampled = runs([attended({1}, participation=0.5)])
    assert not [line for line in cautions(sampled) if "missed" in line]


def test_the_largest_of_equal_clients_is_none():
    run = attended({1})
    equal = {**run.about, "sizes": {**run.about["sizes"], "train": [5, 5, 5]}}
    assert not [line for line in cautions(runs([replace(run, about=equal)])) if "missed" in line]


@pytest.mark.parametrize(("metric", "rare"), [("auroc", ["B (2)"]), ("accuracy", [])])
def test_a_class_of_two_samples_makes_a_macro_auroc_unfit_for_an_order(monkeypatch, metric, rare):
    matrices = [(0, np.diag([10, 12, 30])), (1, np.diag([20, 2, 30])), (2, np.diag([20, 0, 30]))]
    monkeypatch.setattr(joint_cautions, "confusions", lambda _: matrices)
    run = SimpleNamespace(metric=METRICS[metric], client="ABC".__getitem__)
    texts = [*joint_cautions._rare_class(run)]
    assert [name for name in ("A (10)", "B (2)", "C (0)") if name in " ".join(texts)] == rare
