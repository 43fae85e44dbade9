"""The unit of privacy is a group of samples, such as a patient's, or the pages say that it is not."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from private_problem import privacy, problem
from scipy import stats
from test_privacy_audit import lower_bound
from torch.testing import assert_close

import pomona
from pomona.core.errors import ConfigError, PrivacyError
from pomona.privacy.accounting import Event, epsilon, of_groups, rate
from pomona.privacy.ledger import Draw
from pomona.privacy.noise import KeyStore
from pomona.results import table as table_of
from pomona.results.summary_table import run_table
from problems import Notes, tiny

GROUP = {"unit": "group"}
TERMS = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "delta": 1e-4}
UNLIMITED = "unlimited-epsilon"


@given(
    st.lists(st.integers(0, 4), min_size=2, max_size=9),
    st.integers(0, 50),
    st.sampled_from([1e-3, 0.3, 5.0]),
    st.sampled_from([1, 2, 3, 64]),
)
@settings(max_examples=25)
def test_removing_any_group_moves_the_sum_by_at_most_the_norm(
    tmp_path_factory, groups, seed, C, chunk
):
    folder, n = tmp_path_factory.mktemp("p"), len(groups)
    p = problem(folder, privacy(max_grad_norm=C, **GROUP), (n,), seed, chunk=chunk, groups=groups)
    _, total = p.objective.clipped_sum(p.row, torch.arange(n))
    for removed in {*groups}:
        remaining = torch.tensor([i for i in range(n) if groups[i] != removed], dtype=torch.long)
        _, remaining_sum = p.objective.clipped_sum(p.row, remaining)
        assert float((total - remaining_sum).norm()) <= C


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 17, 64])
def test_each_group_adds_the_clipped_sum_of_its_samples_gradients(tmp_path, chunk):
    groups = np.array([2, 0, 2, 2, 1, 0, 2, 3, 3, 2, 2, 5, 2])
    n, C = len(groups), 1.5
    plain = problem(tmp_path / "plain", privacy(max_grad_norm=1e6), (n,))
    single = [plain.objective.clipped_sum(plain.row, torch.tensor([i]))[1] for i in range(n)]
    sums = [sum(single[i] for i in np.flatnonzero(groups == g)) for g in np.unique(groups)]
    norms = torch.stack([s.norm() for s in sums])
    assert (norms > C).any()
    assert (norms < C).any()
    expected = sum(s * min(1.0, C / float(s.norm())) for s in sums)
    p = problem(tmp_path, privacy(max_grad_norm=C, **GROUP), (n,), chunk=chunk, groups=groups)
    loss, total = p.objective.clipped_sum(p.row, torch.arange(n))
    assert_close(total, expected, atol=1e-5, rtol=1e-5)
    assert_close(loss, plain.objective.clipped_sum(plain.row, torch.arange(n))[0])


def test_groups_are_drawn_whole_each_with_the_rate_of_a_row(tmp_path):
    groups = torch.tensor([0, 0, 0, 1, 2, 2, 3, 3, 3, 3])
    n, size, count = len(groups), 3, 4000
    store = KeyStore.open(tmp_path, 0, privacy(**GROUP))
    hits = np.zeros((count, 4))
    for step in range(count):
        row_groups = groups[store.batch(Draw(1, "training", step, n, size), groups)]
        sampled, rows = row_groups.unique(return_counts=True)
        assert torch.equal(rows, groups.bincount()[sampled])
        hits[step, sampled.numpy()] = 1
    q = rate(n, size)
    deviations = (hits.sum(0) - count * q) / math.sqrt(count * q * (1 - q))
    assert np.abs(deviations).max() < 5
    assert np.abs(np.corrcoef(hits.T) - np.eye(4)).max() < 5 / math.sqrt(count)


@given(st.integers(1, 8), st.floats(0.01, 1), st.floats(0.5, 4), st.floats(0.1, 4))
def test_the_event_of_a_group_dominates_the_binomial_mixture(rows, q, sigma, log_ratio):
    """One release: delta at e of the sum of Binomial(rows, q) clipped gradients plus noise, by
    numerical integration, is at most that of the event, both ways.
    """
    (event,) = of_groups({Event(sigma, q): 1}, rows)
    x = np.linspace(-12 * sigma, rows + 12 * sigma, 20_001)
    baseline = stats.norm.pdf(x, 0, sigma)
    shares = stats.binom.pmf(range(rows + 1), rows, q)
    mixture = sum(
        s * stats.norm.pdf(x, j, sigma) for j, s in zip(range(rows + 1), shares, strict=True)
    )
    scale = sigma / event.sigma  # the event's sensitivity is 1, in units of all rows
    bound = (1 - event.q) * baseline + event.q * stats.norm.pdf(x, scale, sigma)

    def delta(p, r):
        return np.trapezoid(np.maximum(p - math.exp(log_ratio) * r, 0), x)

    assert delta(mixture, baseline) <= delta(bound, baseline) + 1e-6
    assert delta(baseline, mixture) <= delta(baseline, bound) + 1e-6


def test_one_row_is_the_event_itself_and_a_full_batch_has_all_rows():
    history = {Event(2.0, 0.25): 3, Event(1.0, 1.0): 2}
    assert of_groups(history, 1) == pytest.approx(history)
    assert of_groups({Event(2.0, 1.0): 3}, 4) == {Event(0.5, 1.0): 3}


@pytest.mark.long
def test_a_canary_of_seven_rows_is_above_the_rows_epsilon_and_below_the_groups(tmp_path):
    """2,000 releases with and without the rows of one patient: with unit row these move the sum by
    seven norms, with unit group by one.
    """
    pytest.importorskip("opacus")
    row, C, rows = {Event(1.0, 1.0): 1}, 0.7, 7
    proven = {}
    for unit, shift in (("row", rows * C), ("group", C)):
        store = KeyStore.open(tmp_path / unit, 0, privacy(unit=unit))
        releases = []
        for present in (0.0, shift):
            total = torch.zeros(2).double()
            total[0] = present
            releases.append(
                np.array(
                    [
                        float(store.release(Draw(r, "training", 0, 9, 9), torch.zeros(1), total)[0])
                        for r in range(2000)
                    ]
                )
            )
        proven[unit] = lower_bound(*releases)
    terms = privacy(accountant="prv")
    assert proven["group"] <= epsilon(terms, row)
    assert proven["row"] <= epsilon(terms, of_groups(row, rows))
    assert proven["row"] > proven["group"]


def test_a_ledger_counts_one_unit(tmp_path):
    draw, zero = Draw(1, "training", 0, 9, 3), torch.zeros(2).double()
    for unit, second in (("row", "group"), ("group", "row")):
        store = KeyStore.open(tmp_path / unit, 0, privacy(unit=unit))
        store.release(draw, torch.zeros(1), zero)
        del store
        ledger = tmp_path / unit / "client-00" / "ledger.jsonl"
        last = json.loads(ledger.read_text().splitlines()[-1])
        assert last.get("unit", "row") == unit
        KeyStore.open(tmp_path / unit, 0, privacy(unit=unit))
        with pytest.raises(PrivacyError, match=f"releases per {unit}.*privacy.unit is '{second}'"):
            KeyStore.open(tmp_path / unit, 0, privacy(unit=second))


# Runs.


def table(path, max_rows=7):
    """Two sites with 40 patients each; ten patients of one site have ``max_rows`` rows."""
    draw = np.random.default_rng(0)
    lines = ["site,patient,a,b,label"]
    for site in ("north", "south"):
        for patient in range(40):
            for _ in range(max_rows if patient < 10 and site == "south" else 1):
                a, b = draw.normal(size=2)
                lines.append(f"{site},{patient},{a:.4f},{b:.4f},{int(a + b > 0)}")
    path.write_text("\n".join(lines) + "\n")
    return path


def run(folder, **options):
    result, notes = trained(folder, **options)
    return result.summary["privacy"], notes.said


def trained(folder, max_rows=7, grouped=True, **private):
    columns = {"label_column": "label", "client_column": "site"} | (
        {"group_column": "patient"} if grouped else {}
    )
    releases = ["sample-counts", "metrics", "feature-moments", "class-names", UNLIMITED]
    notes = Notes()
    result = pomona.run(
        method="fedavg",
        rounds=2,
        lr=0.1,
        data={"path": str(table(folder / "table.csv", max_rows)), **columns},
        privacy={**TERMS, "acknowledge": releases, **private},
        callback=notes,
    )
    return result, notes


@pytest.mark.long
def test_a_run_says_how_little_a_rows_epsilon_protects_a_patient(tmp_path):
    pytest.importorskip("opacus")
    result, notes = trained(tmp_path)
    costs, texts = result.summary["privacy"], notes.said
    assert costs["unit"] == "row"
    assert costs["groups"]["rows"] == [1, 7]
    assert costs["groups"]["clients"][0] == pytest.approx(costs["clients"][0])
    assert costs["groups"]["clients"][1] > 3 * costs["clients"][1]
    (line,) = (text for text in texts if "will cost" in text)
    assert "for one row" in line
    assert "up to 7 training rows" in line
    assert "privacy.unit = group" in line
    (row,) = (row for row in table_of([result]) if row["headline"])
    assert (row["group_rows"], row["epsilon_group"]) == (7, max(costs["groups"]["clients"]))
    columns = run_table([row])
    cell = columns.rows[0][columns.header.index("epsilon")]
    assert cell.endswith(f"one row), {row['epsilon_group']:.3g} for all rows of a group, up to 7")


@pytest.mark.long
def test_a_comparison_has_epsilon_beside_each_score(tmp_path):
    pytest.importorskip("opacus")
    private = tiny(
        "fedavg", privacy={**TERMS, "acknowledge": ["sample-counts", "metrics", UNLIMITED]}
    )
    rows = table_of([pomona.run(private), pomona.run(tiny("fedavg"))])
    run_epsilon = pomona.run(private).summary["privacy"]["epsilon"]
    columns = run_table(rows)
    cells = [row[columns.header.index("epsilon")] for row in columns.rows]
    assert cells[0] == f"{run_epsilon:.3g} (delta 0.0001, one row)"
    assert cells[-1] == "no privacy"
    assert "epsilon" not in run_table(rows[-1:]).header


@pytest.mark.long
def test_a_run_of_groups_has_one_epsilon(tmp_path):
    pytest.importorskip("opacus")
    rows, _ = run(tmp_path)
    costs, texts = run(tmp_path, **GROUP)
    assert costs["unit"] == "group"
    assert "groups" not in costs
    assert costs["clients"] == pytest.approx(rows["clients"])  # the same sigma, q and steps
    (line,) = (text for text in texts if "will cost" in text)
    assert "for one group" in line
    assert "groups" not in run(tmp_path, max_rows=1)[0]
    with pytest.raises(ConfigError, match=r"set data\.group_column"):
        run(tmp_path, grouped=False, **GROUP)
