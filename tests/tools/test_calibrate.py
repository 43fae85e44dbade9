"""The calibration of gains in short: sites of a real table of 13 hospitals, single rows, and few events."""

import importlib.util
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location("calibrate", Path(__file__).parents[2] / "tools" / "calibrate.py")
calibrate = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(calibrate)

REPEATS = 100


@pytest.mark.parametrize(
    ("name", "sites"),
    [
        ("accuracy", [(n, 0) for n in calibrate.CGD]),
        ("accuracy", [(1, 0)] * 20),
        ("mae", [(1, 0)] * 20),
        ("auroc", [(30, 1)] * 12),
        ("auroc", calibrate.EVENTS["5 of 5 %: 12, 8, 4, 2, 2"]),
    ],
)
def test_equal_models_are_seldom_told_apart(name, sites):
    """At a rate of 0.05, 13 or more of 100 happen in 1 of 700 cases: the bootstrap before had 31 to 77 here."""
    assert calibrate.rates(name, sites, REPEATS).false <= 0.12


def test_a_single_mean_has_the_power_of_students_t():
    found = calibrate.rates("mae", [(200, 0)], REPEATS)
    assert found.power >= found.usual_power - 0.02 > 0.5
    assert found.coverage >= 0.88
