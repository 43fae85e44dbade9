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
    bounds = np.roots([1 + z**2 / n, -2 * share - z**2 / n, share**2])
    return sorted(float(bound) for bound in bounds)


def test_figures_of_single_clients_and_gains_are_by_patient(table):
    pair = runs([ran(table, m, group_column="patient") for m in ("separate", "fedavg")])
    separate, fedavg = pair
    for run in pair:
        # a resample of few patients may lack one of the outcomes: no interval then
        ranked = [(r["auroc"], r["intervals"]["auroc"]) for r in records(run)]
        widths = [
            span[1] - span[0] for auroc, span in ranked if span and span[0] <= auroc <= span[1]
        ]
        assert len(widths) >= 2
        assert min(widths) > 0.05
        for i, r in enumerate(records(run)):
            patients = run.units(i, 0)
            assert r["intervals"]["accuracy"] == pytest.approx(by_patient(r["accuracy"], patients))
        for i, r in enumerate(records(run)):
            (outcome,) = r["outcomes"]
            assert outcome["units"] == run.units(i, 0)
            ill = outcome["positives"] // VISITS
            expected = by_patient(outcome["sensitivity"], ill) if ill >= FEW else None
            assert outcome["intervals"]["sensitivity"] == pytest.approx(expected)
        assert all(
            low is None is high for o in pooled_outcomes(run) for _, _, low, high, *_ in o.groups
        )
    gains = gained(fedavg, separate)
    patients = [fedavg.units(i, 0) for i in range(3)]
    assert [gain.pairs for gain in gains.clients] == patients
    assert [gain.rows for gain in gains.clients] == [VISITS * n for n in patients]
    rows, groups = VISITS * sum(patients), sum(patients)
    assert evidence(fedavg, gains.mean).startswith(
        f"This rests on {rows} test rows in {groups} groups (data.group_"
    )
    assert gain_tables(pair)[1].header[1] == "Test groups"
    at_threshold, calibration = outcome_tables(pair)
    assert at_threshold.rows
    assert not any("(" in row[-1] for row in calibration.rows)
    assert not any("(" in cell for row in subgroups(pair).rows for cell in row[3:])
    assert any("belong together" in str(c) for c in cautions(pair))


def test_rows_that_stand_alone_keep_their_intervals(table):
    pair = runs([ran(table, m, drop_columns=["patient"]) for m in ("separate", "fedavg")])
    assert all(r["intervals"]["accuracy"] for run in pair for r in records(run))
    gains = gained(pair[1], pair[0])
    assert "groups" not in evidence(pair[1], gains.mean)
    assert gain_tables(pair)[1].header[1] == "Test samples"
    assert all("(" in cell for row in subgroups(pair).rows for cell in row[3:])
    assert not any("belong together" in str(c) for c in cautions(pair))
