"""The top of a report: one sentence, and each run's gain with the clients as dots."""

from dataclasses import replace

import pytest
from report_results import degenerate, regression
from test_report_verdicts import scored, scored_of, sized

import pomona
from pomona.results.figures.gain import MOST_DOTS, gain
from pomona.results.run_numbers import runs
from pomona.results.text.headline import headline


@pytest.mark.parametrize(
    ("separate_right", "fedavg_right", "verdict", "change"),
    [
        ((60, 80, 70), (95, 60, 71), "Federation helps: FedAvg gains", "5.33"),
        ((95, 60, 71), (60, 80, 70), "Federation does not help here: FedAvg loses", "5.33"),
        ((60, 80, 70), (61, 80, 70), "No significant difference, not worse by 2.00 ", "0.33"),
    ],
)
def test_the_headline_is_the_verdict_with_its_size(separate_right, fedavg_right, verdict, change):
    text = headline(runs([scored("separate", separate_right), scored("fedavg", fedavg_right)]))
    assert text.startswith(verdict)
    assert f"{change} percentage points in accuracy" in text
    assert "95\N{NO-BREAK SPACE}% interval" in text


def test_the_headline_names_the_correction_and_the_best_of_several():
    """FedAvg's lone interval excludes 0; with ten more runs it is corrected."""
    separate = scored("separate", (60, 80, 70))
    pair = [separate, scored("fedavg", (64, 82, 71))]
    assert headline(runs(pair)).startswith("Federation helps")
    text = headline(runs([*pair, *(scored("apple", (60, 80, k)) for k in range(60, 70))]))
    assert text.startswith("No significant difference, corrected for the number of runs")
    assert "the best of 11 runs," in text
    assert " +0." in text


def test_a_gain_without_an_interval_decides_nothing():
    small_runs = [sized(m, k, (4, 4)) for m, k in (("separate", (1, 2)), ("fedavg", (4, 4)))]
    assert headline(runs(small_runs)).startswith("Not decided: FedAvg gains 62.50")
    blank = [replace(run, answers={}) for run in small_runs]
    assert "100.00\N{NO-BREAK SPACE}% against 37.50\N{NO-BREAK SPACE}%" in headline(runs(blank))
    assert "without an interval" in gain(runs(blank)).caption


def test_a_figure_can_be_changed_and_written(tmp_path):
    figures = pomona.figures(scored("separate", (60, 80, 70)), scored("fedavg", (61, 80, 70)))
    axes = figures["gain"].figure.axes[0]
    assert axes.get_xlabel() == "gain over Separate (percentage points)"
    figures["gain"].save(tmp_path / "before", ["pdf"])
    axes.set_xlabel("gain in points")
    figures["gain"].save(tmp_path / "after", ["pdf", "svg"])
    original, changed = (
        (tmp_path / folder / "gain.pdf").read_bytes() for folder in ("before", "after")
    )
    assert original != changed
    assert (tmp_path / "after/gain.svg").read_text().startswith("<?xml")


def test_clients_that_are_left_out_of_a_mean_are_counted():
    results = [sized(m, (30, k), (60, 4)) for m, k in (("separate", 1), ("fedavg", 4))]
    assert "(mean of 1 of 2 clients; 95" in headline(runs(results))
    assert "mean over the clients with enough test samples" in gain(runs(results)).caption


def test_of_errors_less_is_better_and_the_ticks_have_signs():
    results = [regression("separate", (0.6, 0.9, 0.8)), regression("apple", (0.3, 0.5, 0.9))]
    assert "less is better" in headline(runs(results))
    picture = gain(runs(results))
    assert "above 0 is better" in picture.caption
    axis = picture.figure.axes[0].xaxis
    labels = [axis.get_major_formatter()(v, 0) for v in (-0.2, 0.0, 0.3)]
    assert labels == ["\N{MINUS SIGN}0.2", "0", "+0.3"]
    assert "less is better" in gain(runs(results[:1])).title


def test_runs_of_different_metrics_or_rounds_are_not_drawn_as_if_they_were_alike():
    separate, fedavg = scored("separate", (60, 80)), scored("fedavg", (70, 90))
    late = replace(fedavg, evaluations=[replace(fedavg.evaluations[0], round=7)])
    assert "in different rounds" in headline(runs([separate, late]))
    assert "after the round that each run is compared by" in gain(runs([separate, late])).caption
    assert gain(runs([regression("separate", (0.6, 0.9)), fedavg])) is None


def test_only_training_alone_was_evaluated():
    text = headline(
        runs([scored("separate", (60, 80)), replace(scored("fedavg", (1, 2)), evaluations=[])])
    )
    assert "Separate" in text
    assert "no other run" in text


def test_one_run_alone_and_runs_without_training_alone_claim_no_gain():
    assert headline(runs([scored("apple", (60, 80))])) == (
        "Accuracy: 70.00\N{NO-BREAK SPACE}% on average over 2 clients, after round 1."
    )
    text = headline(runs([scored("apple", (60, 80)), scored("fedavg", (50, 80))]))
    assert text.startswith("APPLE has the best accuracy, 70.00")


@pytest.mark.parametrize("case", degenerate())
def test_runs_that_lack_something_have_a_headline(case):
    assert headline(runs(degenerate()[case]())).endswith(".")


def test_dots_are_the_clients_gains_and_the_bar_is_the_interval():
    """Gains of 35, -20 and 1 points."""
    picture = gain(runs([scored("separate", (60, 80, 70)), scored("fedavg", (95, 60, 71))]))
    axes = picture.figure.axes[0]
    _, dots, bar, mean = axes.lines
    assert list(dots.get_xdata()) == pytest.approx([-20, 1, 35])
    low, high = bar.get_xdata()
    assert mean.get_xdata()[0] == pytest.approx(16 / 3)
    assert low < 16 / 3 < high
    assert [text.get_text() for text in axes.texts] == ["+5.33"]
    assert [tip.partition(": ")[2] for tip in picture.tips["clients-0"]] == [
        "\N{MINUS SIGN}20.00", "+1.00", "+35.00",
    ]  # fmt: skip
    first, *client_rows = picture.rows
    assert first["client"] == "mean"
    assert first["low"] < first["gain_over_separate"] < first["high"]
    assert [row["gain_over_separate"] for row in client_rows] == pytest.approx([0.35, -0.2, 0.01])


def test_without_training_alone_the_dots_are_values():
    picture = gain(runs([scored("apple", (60, 80)), scored("fedavg", (50, 80))]))
    assert [text.get_text() for text in picture.figure.axes[0].texts] == ["70.00", "65.00"]
    assert {row["value"] for row in picture.rows if row["client"] == "mean"} == {0.7, 0.65}


def test_a_thousand_clients_are_quantiles_and_the_caption_says_so():
    right = [i % 100 for i in range(1000)]
    picture = gain(runs([scored_of("apple", right)]))
    dots = picture.figure.axes[0].lines[0].get_xdata()
    assert (len(dots), dots[0], dots[-1]) == (MOST_DOTS, 0, 99), "worst and best client"
    assert str(MOST_DOTS) in picture.caption
