"""Single runs side by side: in the terminal, as Markdown and as LaTeX."""

import pytest

import pomona
from pomona.cli import main
from pomona.config import resolve
from pomona.results.summary_table import run_table


def row(run, *, metric="accuracy", loss_name="auto", headline=True, **fields):
    """Output of ``pomona.results.table`` for a run's model."""
    plain = {
        "run": run, "method": "fedavg", "model": "global", "when": "received", "headline": headline, "finished": True,
        "metric": metric, "clients": 2, "round": 3, "last": 0.5, "test_at_best_validation": 0.6, "best_on_test": 0.75,
        "pooled": 0.52, "worst": 0.4, "percentile_10": 0.42, "loss": 0.7, "loss_name": loss_name, "bytes_down": 10**6,
        "bytes_up": 2 * 10**6, "seconds": 1.25,
    }  # fmt: skip
    return plain | fields


def test_accuracies_are_in_percent_and_other_metrics_as_they_are():
    table = run_table([row("A"), row("A", headline=False, model="local")])
    assert table.header == ["method", "model", "when", "last", "best val.", "BMCTA", "all samples", "worst", "10th pct.",
                            "loss", "sent", "seconds"]  # fmt: skip
    assert table.rows[0] == ["A", "global", "received", "50.00", "60.00", "75.00", "52.00", "40.00", "42.00", "0.7000", "3 MB",
                             "1.2"]  # fmt: skip
    assert (table.title, table.marked) == ("Test accuracy in %", {(0, 0)})
    ranked = run_table([row("A", metric="auroc", pooled=None)])
    assert ranked.rows[0][3:8] == ["0.500", "0.600", "0.750", "0.400", "0.420"]
    assert "BMCTA" not in " ".join(ranked.notes) + " ".join(ranked.header)
    assert "all samples" not in ranked.header


def test_runs_that_differ_in_loss_or_metric_say_which():
    table = run_table(
        [row("A"), row("B", loss_name="mine:weighted"), row("C", metric="mae", last=1.5)]
    )
    assert table.header[3:5] == ["metric", "minimises"]
    assert [line[3:6] for line in table.rows] == [
        ["accuracy in %", "auto", "50.00"],
        ["accuracy in %", "mine:weighted", "50.00"],
        ["mean absolute error", "auto", "1.500"],
    ]


def test_the_command_writes_latex_and_markdown(tmp_path, capsys):
    tiny = {
        "data": {"name": "digits", "train_limit": 120, "test_limit": 60},
        "clients": 2,
        "rounds": 1,
        "lr": 0.1,
    }
    for name in ("separate", "fedavg"):
        pomona.run(resolve(tiny, {"method": {"name": name}, "workers": 1}), out=tmp_path / name)
    for option, output in (
        ("--latex", r"\begin{tabular}{"),
        ("--markdown", "| method | model | when |"),
    ):
        with pytest.raises(SystemExit, match="0"):
            main(["compare", str(tmp_path), option])
        assert output in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        main(["compare", str(tmp_path), "--latex", "--json"])
    assert "give one" in capsys.readouterr().err
