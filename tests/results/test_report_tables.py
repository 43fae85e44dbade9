"""Tables that only some runs have, and their place on the page."""

from dataclasses import replace

import numpy as np
import pytest
from report_results import guarded, result

from pomona.metrics.intervals import wilson
from pomona.results.run_numbers import runs
from pomona.results.tables.by_task import labels
from pomona.results.tables.gains import gain_tables
from pomona.results.tables.optional import privacy, unseen
from pomona.results.tables.outcomes import MOST_ROWS, outcome_tables
from pomona.results.text.cautions import cautions
from pomona.results.web.report_page import client_tables
from pomona.results.web.report_page import page as report
from pomona.tasks import TASKS
from pomona.tasks.scores import full_metrics


def test_what_no_run_has_is_no_table() -> None:
    plain = runs([result("apple", n=3, rounds=2)])
    assert (
        unseen(plain).rows
        == privacy(plain).rows
        == labels(plain).rows
        == gain_tables(plain)
        == outcome_tables(plain)
        == []
    )
    page = report(plain)
    assert 'id="unseen"' not in page
    assert 'id="privacy"' not in page


def test_unseen_clients_stand_beside_the_members() -> None:
    run = guarded()
    table = unseen(runs([run]))
    # The test split alone, and no column for the only run.
    assert table.rows == [["clinic 4", "personal, as received", "50", "75.00", "0.2500"]]
    assert table.header == ["Client", "Model", "Test samples", "Accuracy in %", "Test loss"]
    members = 100 * np.mean(run.curve("personal", "received")[-1].accuracy)
    assert (
        f"accuracy 75.00 % on average over these clients, {members:.2f} % over the members"
        in table.notes[1]
    )
    joint_table = unseen(runs([run, result("apple", n=4, rounds=3)]))
    assert [row[:2] for row in joint_table.rows] == [["clinic 4", "FedAvg-FT"]]
    assert len(joint_table.notes) == 2


def test_privacy_says_what_each_client_spent_and_under_which_terms() -> None:
    table = privacy(runs([guarded()]))
    assert [row[-1] for row in table.rows] == ["1.500", "no bound", "2.250", "0.000"]
    terms = table.notes[1]
    for phrase in (
        "δ = 1e-05",
        "noise multiplier 1.1",
        "clipped at 0.5",
        "not covered, and accepted: metrics",
    ):
        assert phrase in terms
    assert "budget" not in terms
    assert "against anyone who sees a client's uplinks" in terms
    summed = guarded()
    config = {**summed.config, "secure_aggregation": {"max_norm": 1.0, "minimum": 4}}
    config["privacy"] = {**config["privacy"], "honest": 3}
    terms = privacy(runs([replace(summed, config=config)])).notes[1]
    assert "against those who see sums of 4 clients or more alone, of which up to 1 may" in terms
    assert "anyone" not in terms
    void = privacy(runs([guarded(void="no privacy: noise_multiplier = 0"), guarded("apple")]))
    assert void.notes[1] == "FedAvg-FT: no privacy: noise_multiplier = 0."
    assert [row[1] for row in void.rows] == ["FedAvg-FT"] * 4 + ["APPLE"] * 4
    assert [row[2] for row in void.rows] == ["no bound"] * 4 + [row[-1] for row in table.rows]


def test_the_page_of_a_federation_says_where_its_epsilon_is() -> None:
    run = guarded()
    summary = {key: value for key, value in run.summary.items() if key != "privacy"}
    table = privacy(runs([replace(run, summary=summary)]))
    (row,) = table.rows
    assert "pomona silo report" in row[-1]
    assert "δ = 1e-05" in table.notes[1]
    assert not privacy(runs([result("apple", n=4, rounds=3)])).rows


def test_the_page_has_both_with_links_to_them() -> None:
    page = report(runs([guarded()]))
    for table in (unseen(runs([guarded()])), privacy(runs([guarded()]))):
        assert f'<a href="#{table.name}">{table.title}</a>' in page
        assert f'id="{table.name}">' in page
    assert (
        '<th scope="row">clinic 4</th><td>personal, as received</td><td class="number">50</td>'
        in page
    )


def test_labels_stand_by_their_names_with_their_own_figures() -> None:
    """The first label is ranked rightly by client 0 and wrongly by client 1; client 1 never has the
    second.
    """
    truth = [
        np.array([[1, 1], [0, 0], [1, 0]], np.float32),
        np.array([[1, 0], [0, 0], [0, 0]], np.float32),
    ]
    scores = [
        np.array([[2, 1], [-1, 0], [1, -1]], np.float32),
        np.array([[-2, 0], [1, 1], [0, 2]], np.float32),
    ]
    base = result("fedavg", n=2, rounds=1)
    metadata = {
        **base.about,
        "targets": "multilabel",
        "metric": "auroc",
        "labels": ["Edema", "Nodule"],
    }
    run = replace(
        base, about=metadata, answers={0: (scores[0], truth[0]), 1: (scores[1], truth[1])}
    )
    rows = labels(runs([run])).rows
    assert [row[:5] for row in rows] == [
        ["Edema", "3", "6", "2", "0.500"],
        ["Nodule", "1", "6", "1", "1.000"],
    ]
    assert "Edema" in report(runs([run]))
    unnamed = replace(run, about={**metadata, "labels": []})
    assert [row[0] for row in labels(runs([unnamed])).rows] == ["label 0", "label 1"]


def test_metrics_of_flags_have_intervals_on_the_page():
    draw = np.random.default_rng(0)
    logits, flags = draw.normal(size=(40, 2)), draw.integers(0, 2, (40, 2)).astype(np.float32)
    metrics = full_metrics((logits, flags), TASKS["multilabel"], seed=0, client=0)
    base = result("fedavg", n=2, rounds=1)
    run = replace(base, final=[record | metrics for record in base.final])
    (table,) = client_tables(runs([run]))
    low, high = metrics["intervals"]["auroc"]
    bounds = f"{low:.3f} to {high:.3f}"
    cell = table.rows[0][1][table.headings.index("AUROC")]
    assert cell == (f"{metrics['auroc']:.3f}", bounds)
    assert bounds in report(runs([run]))


def judged(n, youden):
    """A run of two classes in which all clients got 3 of 4 right, with groups of 2 and 6
    samples.
    """
    base = result("apple", n=n, rounds=2, classes=2)
    outcome = {
        "outcome": 1, "samples": 8, "positives": 4, "threshold": 0.25 if youden else 0.5, "chosen": youden,
        "sensitivity": 0.75, "ppv": None, "calibration": [[0.1, 0, 2], [0.6, 4, 6]],
        "intervals": {"sensitivity": wilson(3, 4), "ppv": None},
    }  # fmt: skip
    return runs([replace(base, final=[record | {"outcomes": [outcome]} for record in base.final])])


def test_outcomes_stand_with_their_threshold_and_intervals():
    for youden, threshold in ((True, "0.250"), (False, "0.5 (fixed)")):
        at_threshold, calibration = outcome_tables(judged(2, youden))
        low, high = wilson(3, 4)
        assert at_threshold.rows[0][:5] == ["clinic 1", "digit 1", "4", "8", threshold]
        assert (
            dict(zip(at_threshold.header, at_threshold.rows[1], strict=True))["Sensitivity"]
            == f"0.750 ({low:.3f} to {high:.3f})"
        )
        assert dict(zip(at_threshold.header, at_threshold.rows[1], strict=True))["PPV"] == "-"
        low, high = wilson(4, 6)
        assert calibration.rows[1] == [
            "clinic 1",
            "digit 1",
            "6",
            "0.600",
            f"{4 / 6:.3f} ({low:.3f} to {high:.3f})",
        ]
        page = report(judged(2, youden))
        assert 'id="outcomes"' in page
        assert 'id="calibration"' in page


@pytest.mark.parametrize(("target", "missed"), [(None, False), (0.9, False), (0.96, True)])
def test_a_caution_names_clients_whose_threshold_misses_its_target(target, missed):
    """3 of 4 cases are recognised; Wilson's upper bound is 0.954."""
    (run,) = judged(2, True)
    judged_run = replace(run.result, config={**run.result.config, "sensitivity": target})
    notes = [line for line in cautions(runs([judged_run])) if "thresholds chosen" in line]
    assert bool(notes) == missed
    assert all("0.96" in line and "clinic 2: 0.750 (" in line for line in notes)
    unchosen = replace(judged(2, False)[0].result, config=judged_run.config)
    assert not [line for line in cautions(runs([unchosen])) if "thresholds chosen" in line]


def test_tables_of_outcomes_that_nobody_would_read_are_left_out():
    """Two groups a client: the curve's table goes first."""
    assert len(outcome_tables(judged(MOST_ROWS // 2, True))) == 2
    assert len(outcome_tables(judged(MOST_ROWS // 2 + 1, True))) == 1
    assert outcome_tables(judged(MOST_ROWS + 1, True)) == []
