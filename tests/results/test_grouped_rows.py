"""Several rows of a patient: no interval takes them for independent, and a page counts patients
where it says so.
"""

import numpy as np
import pytest
from scipy import stats

import pomona
from pomona.config import resolve
from pomona.core.rng import stream
from pomona.metrics.influence import FEW
from pomona.results.gain_presentation import evidence, gained
from pomona.results.run_numbers import records, runs
from pomona.results.tables.gains import gain_tables
from pomona.results.tables.optional import subgroups
from pomona.results.tables.outcomes import outcome_tables, pooled_outcomes
from pomona.results.text.cautions import cautions

VISITS = 4  # of a patient


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Three hospitals with 60 patients each; all visits of a patient are alike."""
    draw, lines = stream(0, "visits"), ["value,outcome,hospital,patient,sex"]
    for hospital in "ABC":
        for patient, value in enumerate(draw.normal(size=60)):
            ill = "ill" if value + 0.5 * draw.normal() > 0 else "well"
            lines += [f"{value:.3f},{ill},{hospital},{hospital}{patient},{patient % 2}"] * VISITS
    path = tmp_path_factory.mktemp("visits") / "visits.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def ran(table, method, **data):
    """A run of two rounds, with its page's numbers; in seed 0 each hospital tests on a fifth of its
    rows.
    """
    data = {
        "name": "table",
        "path": str(table),
        "label_column": "outcome",
        "client_column": "hospital",
        "subgroup_column": "sex",
        **data,
    }
    tree = {
        "method": method,
        "data": data,
        "rounds": 2,
        "lr": 0.5,
        "model": "logistic",
        "workers": 1,
    }
    return pomona.run(resolve(tree))


def by_patient(share: float, patients: int) -> list[float]:
    """Wilson's interval of the effective number of alike rows: one less than the patients, as their
    variance is unbiased, and by the quantile of t.
    """
    z, t = stats.norm.ppf(0.975), stats.t.ppf(0.975, patients - 1)
    n = (patients - 1) * (z / t) ** 2 if 0 < share < 1 else patients * (z / t) ** 2
    # the shares p with (share - p)^2 = z^2 p (1 - p) / n
    ends = np.roots([1 + z**2 / n, -2 * share - z**2 / n, share**2])
    return sorted(float(end) for end in ends)


def test_figures_of_single_clients_and_gains_are_by_patient(table):
    both = runs([ran(table, m, group_column="patient") for m in ("separate", "fedavg")])
    alone, together = both
    for run in both:
        # a resample of few patients may lack one of the outcomes: no interval then
        ranked = [(r["auroc"], r["intervals"]["auroc"]) for r in records(run)]
        widths = [
            ends[1] - ends[0] for auroc, ends in ranked if ends and ends[0] <= auroc <= ends[1]
        ]
        assert len(widths) >= 2
        assert min(widths) > 0.05
        for i, r in enumerate(records(run)):
            patients = run.units(i, 0)
            assert r["intervals"]["accuracy"] == pytest.approx(by_patient(r["accuracy"], patients))
        for i, r in enumerate(records(run)):
            (at,) = r["outcomes"]
            assert at["units"] == run.units(i, 0)
            ill = at["positives"] // VISITS
            expected = by_patient(at["sensitivity"], ill) if ill >= FEW else None
            assert at["intervals"]["sensitivity"] == pytest.approx(expected)
        assert all(
            low == share == high
            for o in pooled_outcomes(run)
            for _, share, low, high, *_ in o.groups
        )
    found = gained(together, alone)
    patients = [together.units(i, 0) for i in range(3)]
    assert [gain.pairs for gain in found.clients] == patients
    assert [gain.rows for gain in found.clients] == [VISITS * n for n in patients]
    rows, groups = VISITS * sum(patients), sum(patients)
    assert evidence(together, found.mean).startswith(
        f"This rests on {rows} test rows in {groups} groups (data.group_"
    )
    assert gain_tables(both)[1].header[1] == "Test groups"
    at_threshold, calibration = outcome_tables(both)
    assert at_threshold.rows
    assert not any("(" in row[-1] for row in calibration.rows)
    assert not any("(" in cell for row in subgroups(both).rows for cell in row[3:])
    assert any("belong together" in str(c) for c in cautions(both))


def test_rows_that_stand_alone_keep_their_intervals(table):
    both = runs([ran(table, m, drop_columns=["patient"]) for m in ("separate", "fedavg")])
    assert all(r["intervals"]["accuracy"] for run in both for r in records(run))
    found = gained(both[1], both[0])
    assert "groups" not in evidence(both[1], found.mean)
    assert gain_tables(both)[1].header[1] == "Test samples"
    assert all("(" in cell for row in subgroups(both).rows for cell in row[3:])
    assert not any("belong together" in str(c) for c in cautions(both))
