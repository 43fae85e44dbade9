"""Whole audits: of runs that leak, of runs with differential privacy, stopped and continued."""

import json
from dataclasses import replace
from math import log
from shutil import copytree

import numpy as np
import pytest

from pomona.audit import roc
from pomona.audit.audit import at_epsilon, audit
from pomona.audit.findings import ALL_CLIENTS, assess
from pomona.audit.page import epsilon_table, write
from pomona.audit.shadows import Plan, Shadows, reading_rounds, redraw, run_all
from pomona.audit.views import Records
from pomona.cli import main
from pomona.config import resolve
from pomona.core.errors import ConfigError
from pomona.core.rng import stream
from pomona.partition.partition import Partition
from pomona.record.run_folder import load
from pomona.scenario import Scenario
from pomona.simulation import simulate

pytestmark = pytest.mark.long

RUNS = 16


def leaking(**changes):
    """A run that learns its few records by heart."""
    base = {
        "method": "fedavg",
        "data": {"name": "digits", "train_limit": 60, "test_limit": 60, "validation_share": 0},
        "model": {"name": "mlp", "hidden": [32]},
        "clients": 2,
        "rounds": 6,
        "local_epochs": 5,
        "batch_size": 8,
        "lr": 0.1,
        "workers": 1,
        "engine": "torch",
    }
    return resolve(base, changes)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("audited") / "run"
    simulate(Scenario.prepare(leaking()), folder)
    return folder


@pytest.fixture(scope="module")
def audited(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("audit")
    return audit(load(run), folder, RUNS), folder


def test_an_overfitted_run_is_found_out(audited):
    findings = audited[0].measured[0].findings
    for party in ("server", "peer"):
        assert findings.main(party).auc.low > 0.6
    assert findings.ledger == [None, None]


def test_with_membership_drawn_by_lot_nothing_is_found(run, audited):
    result = load(run)
    plan = Plan.for_run(result, resolve(result.config), audited[1] / "shadows")
    shadows = plan.read(RUNS)
    covered = []
    for seed in range(10):
        draw = stream(seed, "lots")
        lots = draw.permuted(shadows.member.ravel()).reshape(shadows.member.shape)
        findings = assess(replace(shadows, member=lots), 0.0)
        covered += [attack.auc.low <= 0.5 <= attack.auc.high for attack in findings.membership]
        assert max(findings.proven.values()) < 1
    assert np.mean(covered) > 0.85  # of intervals at 95 %


def test_what_is_proven_holds_for_all_clients_together():
    """Four runs judge scores that separate ten records of a client's twenty from ten others:
    Clopper and Pearson's ends of n hits of n and 0 of n. Two clients and all together are three
    claims, each end at 5 % / 3 / 2.
    """
    member = np.tile(np.arange(40) % 2 == 0, (8, 1))
    member[::2] = ~member[::2]
    records = Records(np.arange(40), np.repeat([0, 1], 20))
    scores = {"server": np.where(member, 1.0, -1.0)}
    proven = assess(Shadows(records, member, scores, {}, {}, np.full((8, 2), np.nan)), 0.0).proven
    tail = 0.05 / 3 / 2
    for client, n in ((0, 40), (1, 40), (ALL_CLIENTS, 80)):
        assert proven[client] == pytest.approx(log(tail ** (1 / n)) - log(1 - tail ** (1 / n)))


def test_single_records_are_rebuilt_exactly(audited):
    for picture in audited[0].measured[0].pictures[1]:
        assert picture.closed
        assert picture.match.likeness.min() > 0.999
        assert picture.match.recognised.all()


def test_the_page_names_parties_and_numbers(audited):
    page = write(audited[0])
    text = page.read_text()
    assert (
        "The server can tell training records from others clearly better than by guessing" in text
    )
    assert "What the first message of a client with one record shows" in text
    numbers = json.loads((audited[1] / "privacy-audit.json").read_text())
    assert numbers[0]["runs"] == RUNS
    assert numbers[0]["membership"][0]["auc"][0] > 0.5


def test_a_stopped_audit_loses_one_run(run, tmp_path, monkeypatch):
    plan = Plan.for_run(load(run), leaking(rounds=1), tmp_path)
    stopped = Plan.run

    def fail_at_two(self, number):
        if number == 2:
            raise KeyboardInterrupt
        stopped(self, number)

    monkeypatch.setattr(Plan, "run", fail_at_two)
    with pytest.raises(KeyboardInterrupt):
        run_all(plan, 4)
    assert plan.missing(4) == [2, 3]
    contents = [plan.file(k).read_bytes() for k in (0, 1)]
    monkeypatch.setattr(Plan, "run", stopped)
    counted = []
    shadows = run_all(plan, 4, lambda *progress: counted.append(progress))
    assert counted == [(2, 4), (3, 4), (4, 4)]
    assert [plan.file(k).read_bytes() for k in (0, 1)] == contents
    assert shadows.member.shape == (4, 120)
    of_changed = Plan.for_run(load(run), leaking(rounds=2), tmp_path)
    assert of_changed.missing(4) == [0, 1, 2, 3]  # other settings, other files


def test_records_are_drawn_anew_for_each_run_and_stay_with_their_client(run):
    plan = Plan.for_run(load(run), leaking(), run)
    assert redraw(plan.partition, 0, 0) is plan.partition
    inside = []
    for number in range(1, 200):
        redrawn = redraw(plan.partition, 0, number)
        for new, old in zip(redrawn.clients, plan.partition.clients, strict=True):
            pool = np.union1d(old.train, old.test)
            assert np.array_equal(np.union1d(new.train, new.test), pool)
            assert not np.intersect1d(new.train, new.test).size
        inside.append(np.isin(pool, redrawn.clients[-1].train))
    share = len(old.train) / len(pool)
    n = np.size(inside)
    low, high = roc.clopper_pearson(int(np.sum(inside)), n, 0.999)
    assert low <= share <= high
    corr = np.corrcoef(np.array(inside).T)
    assert abs(corr[np.triu_indices(len(corr), 1)].mean()) < 0.01  # no record speaks for another


def test_the_ledger_of_noise_in_sums_bounds_attacks_on_sums_alone(audited):
    bounds = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "delta": 1e-3, "honest": 2}
    sums = {"secure_aggregation": {"max_norm": 1.0, "minimum": 3}}
    (measured,) = audited[0].measured
    findings = replace(measured.findings, ledger=[1.0, 1.0])
    for config, scope in (
        (leaking(privacy=bounds, **sums), "against those who see sums of 3 clients or more alone"),
        (leaking(privacy={**bounds, "honest": 1}, **sums), "against any attack"),
    ):
        table = epsilon_table(
            replace(
                audited[0],
                scenario=replace(audited[0].scenario, config=config),
                measured=[replace(measured, findings=findings)],
            )
        )
        assert f"a bound {scope}" in table.notes[0]


def test_two_rounds_are_read_besides_the_last():
    assert reading_rounds(1) == frozenset()
    assert reading_rounds(9) == {3, 6}


def test_no_attack_beats_the_ledger(tmp_path):
    """With noise that hides little of few records."""
    pytest.importorskip("opacus")
    privacy = {
        "noise_multiplier": 0.4,
        "max_grad_norm": 1.0,
        "delta": 1e-3,
        "acknowledge": ["sample-counts", "metrics", "unlimited-epsilon"],
    }
    simulate(Scenario.prepare(leaking(privacy=privacy, rounds=3, local_epochs=2)), tmp_path / "run")
    result = load(tmp_path / "run")
    plan = Plan.for_run(result, resolve(result.config), tmp_path / "shadows")
    findings = assess(run_all(plan, 8), 1e-3)
    assert all(10 < ledger < 1000 for ledger in findings.ledger)
    assert all(findings.proven[i] <= findings.ledger[i] for i in range(2))


@pytest.mark.slow
def test_at_three_budgets_less_noise_hides_less(run, tmp_path):
    pytest.importorskip("opacus")
    measured = audit(load(run), tmp_path, RUNS, (1.0, 8.0, 1000.0)).measured
    points = [budget.findings for budget in measured[1:]]
    for point in points:
        assert all(point.proven[i] <= point.ledger[i] for i in range(2))
    assert points[0].main("server").auc.low < 0.53 < points[2].main("server").auc.low


def test_what_cannot_be_audited_is_said(run, tmp_path):
    with pytest.raises(ConfigError, match="sends samples to all clients"):
        Plan.for_run(load(run), leaking(method="fedavg-data"), tmp_path)
    with pytest.raises(ConfigError, match="no epsilon bounds fedproto"):
        at_epsilon(Scenario.prepare(leaking(method="fedproto")), 8.0)


@pytest.mark.parametrize(("train", "test"), [(1, 1), (0, 4), (4, 0)])
def test_a_client_of_whose_records_no_other_draw_is_possible_is_refused(run, tmp_path, train, test):
    """A draw trains on two of a client's records at least, and leaves one."""
    result = load(run)
    partition = Partition.load(run / "partition.json")
    first = partition.clients[0]
    small = replace(first, train=first.train[:train], test=first.test[:test])
    smaller = replace(partition, clients=(small, *partition.clients[1:]))
    (tmp_path / "partition.json").write_text(smaller.text())
    with pytest.raises(ConfigError, match=f"client 0 has {train} training and {test} test"):
        Plan.for_run(replace(result, folder=tmp_path), resolve(result.config), tmp_path)


def test_the_command_writes_the_page_and_says_where(run, tmp_path, capsys):
    folder = copytree(run, tmp_path / "run")
    with pytest.raises(SystemExit) as stop:
        main(["privacy-audit", str(folder), "--runs", "4"])
    assert not stop.value.code
    stdout = capsys.readouterr().out
    assert "The server" in stdout
    assert str(folder / "privacy-audit" / "privacy-audit.html") in stdout
    assert (folder / "privacy-audit").stat().st_mode & 0o077 == 0
    for options in (["--runs", "3"], ["--epsilon", "-1"]):
        with pytest.raises(SystemExit) as stop:
            main(["privacy-audit", str(folder), *options])
        assert stop.value.code == 2
