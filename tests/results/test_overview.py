"""The top of a report: one sentence, and each run's gain with the clients as dots."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_results import degenerate
from test_report_verdicts import scored, scored_of

from pomona.results.run_numbers import runs
from pomona.results.text.headline import headline
from pomona.results.web.overview import MOST_DOTS, _Scale, overview


@pytest.mark.parametrize(
    ("alone", "together", "verdict", "change"),
    [
        ((60, 80, 70), (95, 60, 71), "Federation helps: FedAvg gains", "5.33"),
        ((95, 60, 71), (60, 80, 70), "Federation does not help here: FedAvg loses", "5.33"),
        ((60, 80, 70), (61, 80, 70), "No significant difference from training alone: ", "0.33"),
    ],
)
def test_the_headline_is_the_verdict_with_its_size(alone, together, verdict, change):
    text = headline(runs([scored("separate", alone), scored("fedavg", together)]))
    assert text.startswith(verdict)
    assert f"{change} percentage points in accuracy" in text
    assert "95\N{NO-BREAK SPACE}% interval" in text


def test_one_run_alone_and_runs_without_training_alone_claim_no_gain():
    assert headline(runs([scored("apple", (60, 80))])) == (
        "Accuracy 70.00\N{NO-BREAK SPACE}% on average over 2 clients."
    )
    text = headline(runs([scored("apple", (60, 80)), scored("fedavg", (50, 80))]))
    assert text.startswith("APPLE has the best accuracy, 70.00")


@pytest.mark.parametrize("case", degenerate())
def test_runs_that_lack_something_have_a_headline(case):
    assert headline(runs(degenerate()[case]())).endswith(".")


def test_dots_are_the_clients_gains_and_the_bar_is_the_interval():
    """Gains of 35, -20 and 1 points; their positions keep order and ratios of distances."""
    picture = overview(runs([scored("separate", (60, 80, 70)), scored("fedavg", (95, 60, 71))]))
    (strip,) = picture.strips
    low, middle, high = strip.dots
    assert (high - low) / (middle - low) == pytest.approx(55 / 21, abs=1e-3)
    assert (picture.zero - low) / (high - low) == pytest.approx(20 / 55, abs=1e-3)
    assert (strip.mean - low) / (high - low) == pytest.approx((16 / 3 + 20) / 55, abs=1e-3)
    assert picture.zero < strip.low < strip.mean < strip.high
    assert strip.text == "+5.33"


def test_without_training_alone_the_dots_are_values():
    picture = overview(runs([scored("apple", (60, 80)), scored("fedavg", (50, 80))]))
    assert picture.zero is None
    assert [strip.text for strip in picture.strips] == ["70.00", "65.00"]


def test_a_thousand_clients_are_quantiles_and_the_note_says_so():
    right = [i % 100 for i in range(1000)]
    picture = overview(runs([scored_of("apple", right)]))
    assert len(picture.strips[0].dots) == MOST_DOTS
    assert str(MOST_DOTS) in picture.note


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=5))
def test_every_value_is_on_the_scale_and_ticks_are_even(values):
    scale = _Scale.covering(values)
    assert all(0 <= scale.position(value) <= 100 for value in values)
    assert all(0 <= scale.position(tick) <= 100 for tick in scale.ticks)
    gaps = [b - a for a, b in pairwise(scale.ticks)]
    assert gaps == pytest.approx(gaps[:1] * len(gaps), rel=1e-6)
