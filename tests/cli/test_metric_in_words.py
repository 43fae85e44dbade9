"""Texts about a run whose metric is not accuracy: progress, print_summary lines, tables, scalars."""

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from pomona.cli.output import laid_out
from pomona.cli.run_outcome import print_summary
from pomona.config import Config
from pomona.federation.progress import RunProgress
from pomona.federation.trackers import scalars
from pomona.record.result import Result
from pomona.record.rows import Evaluation, RoundRow
from pomona.record.run_summary import diverging, summarise
from pomona.results import table as result_table
from pomona.results.summary_table import run_table

CLIENTS = ("Nord", "Kids")


def evaluation(number, value, metric="auroc", accuracy=(0.95, 0.97), loss=(0.2, 0.1), split="test"):
    return Evaluation(
        number, "personal", "trained", split, (0, 1), (40, 60), loss, accuracy, value, metric
    )


def result(
    metric="auroc",
    values=((0.6, 0.7), (0.8, None)),
    losses=((0.5, 0.5), (0.2, 0.1)),
    train=(0.5, 0.2),
    **config,
):
    """Two rounds of two clients."""
    record = {
        "clients": CLIENTS,
        "headline": ["personal", "trained"],
        "metric": metric,
        "targets": "classes",
        "constant": {
            constant: {m: {"mean": 0.5} for m in (metric, "loss")} for constant in ("own", "all")
        },
        "data": {"fingerprint": "f"},
        "partition_sha256": "p",
    }
    evaluations = [
        evaluation(n, v, metric, loss=loss, split=split)
        for n, (v, loss) in enumerate(zip(values, losses, strict=True), 1)
        for split in ("validation", "test")
    ]
    rows = [
        RoundRow(n, 0.5, (0, 1), (loss, loss), (8, 8), (4, 4)) for n, loss in enumerate(train, 1)
    ]
    settings = {
        "method": {"name": "fedavg"},
        "data": {"name": "own"},
        "partition": {"name": "natural"},
        **config,
    }
    unsummarised = Result(settings, record, rows, evaluations, [], {})
    return Result(settings, record, rows, evaluations, [], summarise(unsummarised, 1.0))


def result_and_table(metric="auroc", **changes):
    run = result(metric, **changes)
    table = StringIO()
    Console(file=table, width=200).print(laid_out(run_table(result_table([run]))))
    return run, table.getvalue()


def test_the_closing_lines_speak_of_the_metric(capsys, tmp_path):
    print_summary(result(), tmp_path, None)
    text = capsys.readouterr().out
    assert "Test AUROC" in text
    assert "0.800" in text
    assert (
        "a client that always answers the class frequencies of its training labels would score 0.500 on average"
        in text
    )
    assert "all samples" not in text
    assert "accuracy" not in text
    assert "%" not in text


def test_errors_are_best_where_they_are_low(capsys, tmp_path):
    run = result("mae", values=((60.0, 64.0), (80.0, 90.0)))
    outcome = run.summary["models"]["personal, trained"]
    assert (outcome["best_test"], outcome["best_validation"]) == (
        {"test": 62.0, "round": 1, "validation": 62.0},
    ) * 2
    assert (outcome["clients"]["worst"], outcome["clients"]["pooled"]) == (90.0, 86.0)
    print_summary(run, tmp_path, None)
    text = capsys.readouterr().out
    assert "Test mean absolute error" in text
    assert "85" in text


def test_a_table_of_runs_says_what_its_values_are():
    run, table = result_and_table()
    assert "Test AUROC" in table
    assert "all samples" not in table
    assert "0.800" in table
    assert "%" not in table
    output = StringIO()
    results = [run, result("accuracy", values=((0.9, 0.9), (0.95, 0.97)))]
    Console(file=output, width=200).print(laid_out(run_table(result_table(results))))
    assert "each run in its own metric" in output.getvalue()
    assert "accuracy in %" in output.getvalue()
    assert "96.00" in output.getvalue()


def test_runs_that_differ_in_their_loss_say_so():
    rows = result_table([result(model={"loss": loss}) for loss in ("auto", "wloss:weighted")])
    text = StringIO()
    Console(file=text, width=200).print(laid_out(run_table(rows)))
    assert "minimises" in text.getvalue()
    assert "wloss:weighted" in text.getvalue()


def test_the_progress_line_shows_the_metric():
    progress = RunProgress.of_run(Config())
    progress.update(
        RoundRow(1, 0.5, (0, 1), (0.5, 0.5), (8, 8), (4, 4)), [evaluation(1, (0.6, 0.7))]
    )
    assert progress.metrics == "AUROC: personal 0.650"


def test_the_closing_lines_count_the_seconds_of_all_rounds_those_before_a_resume_too(
    capsys, tmp_path
):
    run = result()
    print_summary(replace(run, summary={**run.summary, "seconds": 0.1}), tmp_path, None)
    assert f"2 rounds in {sum(r.seconds for r in run.rounds):.1f} s" in capsys.readouterr().out


def test_scalars_are_named_by_the_metric():
    row = RoundRow(1, 0.5, (0, 1), (0.5, 0.5), (8, 8), (4, 4))
    figures = scalars(
        row, [evaluation(1, (0.6, 0.7)), evaluation(1, (3.0, 5.0), "mae", split="validation")]
    )
    assert figures["test_auroc_mean_over_clients/personal.trained", 1] == pytest.approx(0.65)
    assert figures["test_accuracy_mean_over_clients/personal.trained", 1] == pytest.approx(0.96)
    assert figures["validation_mae_worst_client/personal.trained", 1] == 5.0


@pytest.mark.parametrize(
    ("losses", "train", "message"),
    [
        (((0.5, 0.5), (0.2, 0.1)), (0.5, 0.2), ""),
        (
            ((0.5, 0.5), (1.9e20, 0.1)),
            (0.5, 0.4),
            "the test loss ended at 9.5e+19, from 0.5 when first evaluated",
        ),
        (
            ((0.5, 0.5), (0.2, 0.1)),
            (0.5, 6.0),
            "the training loss ended at 6, from 0.5 in the first round",
        ),
        (((9.0, 9.0), (9.0, 9.0)), (0.5, 0.5), "where a constant answer has 0.5"),
        (((0.5, 0.5), (None, None)), (0.5, 0.4), "the last test loss of no client is finite"),
        (((0.5, 0.5), (None, 0.5)), (0.5, 0.4), ""),
    ],
)
def test_a_loss_that_training_drives_up_is_said(losses, train, message, capsys, tmp_path):
    run = result(losses=losses, train=train)
    assert message in diverging(run)
    assert bool(diverging(run)) == bool(message)
    print_summary(run, tmp_path, None)
    assert ("diverging: " in capsys.readouterr().out) == bool(message)
