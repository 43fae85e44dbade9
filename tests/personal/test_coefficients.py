"""Coefficients in a table's own units, against maximum-likelihood estimates that are computed here
from the columns as they are in the table.
"""

import json
from math import exp

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import pomona
from command_line import call
from pomona.core.errors import ConfigError
from pomona.data import from_frame
from pomona.record.coefficients import OUT_OF_RANGE, UNDETERMINED
from pomona.record.result import Result
from pomona.results.tables.coefficients import _rounded
from pomona.results.web.report_page import write
from pomona.scenario import Scenario
from pomona.simulation import simulate

pytestmark = pytest.mark.long
N = 400
CONVERGED = {"lr": 1.0, "batch_size": N, "local_epochs": 1}
PRIVACY = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "delta": 1e-4}
RELEASES = ["sample-counts", "metrics", "feature-moments", "class-names", "vocabulary"]
PRIVACY |= {"acknowledge": [*RELEASES, "unlimited-epsilon"]}
Z = stats.norm.ppf(0.975)


def newton(design, y):
    """Maximum-likelihood estimate and standard errors of a logistic regression."""
    beta = np.zeros(design.shape[1])
    for _ in range(25):
        p = 1 / (1 + np.exp(-design @ beta))
        information = design.T @ (design * (p * (1 - p))[:, None])
        beta = beta + np.linalg.solve(information, design.T @ (y - p))
    return beta, np.sqrt(np.diag(np.linalg.inv(information)))


def patients(seed=0):
    """Age, laboratory values with gaps, a stage of three, a date; and outcomes."""
    draw = np.random.default_rng(seed)
    age, lab = draw.normal(60, 12, N), draw.normal(2, 1, N)
    stage = draw.choice(["I", "II", "III"], N, p=[0.2, 0.5, 0.3])
    dates = np.datetime64("2020-01-01") + draw.integers(0, 1000, N)
    risk = 0.05 * (age - 60) + 0.8 * (stage == "III") + 0.5 * lab - 1
    table = pd.DataFrame({"age": age, "lab": np.where(draw.random(N) < 0.15, np.nan, lab)})
    table = table.assign(stage=stage, seen=dates, site=draw.choice(["A", "B"], N))
    return table, risk, draw


def trained(table, label, method="fedavg", model="logistic", rounds=150, folder=None, **settings):
    """Run to the optimum; returns the result and each client's training rows of the table."""
    columns = {"categories": "encode", "missing": "median", "client_column": "site"}
    columns |= {"dates": ["seen"] if "seen" in table else [], "label_column": label}
    data = from_frame(table, **(columns | settings.pop("data", {})))
    config = pomona.Config(
        method=method,
        data=data,
        model={"name": model},
        rounds=rounds,
        eval_every=rounds,
        **(CONVERGED | settings),
    )
    scenario = Scenario.prepare(config)
    rows = [table.iloc[client.train] for client in scenario.partition.clients]
    return simulate(scenario, folder), rows


def design(rows):
    """Intercept, age, lab with its median and a flag for gaps, the stages against II, days."""
    lab = rows.lab.fillna(np.float32(rows.lab.median()))
    columns = [np.ones(len(rows)), rows.age, lab, rows.lab.isna(), rows.stage == "I"]
    days = (rows.seen - np.datetime64("2020-01-01")).dt.days
    return np.stack([*columns, rows.stage == "III", days], 1).astype(float)


STEPS = [("age", "1", ""), ("lab", "1", ""), ("lab", "a gap", None), ("stage", "I", "II")]
STEPS += [("stage", "III", "II"), ("seen", "1 day", "")]


def require_equal(coefficients, beta, errors):
    assert [(c.column, c.step) for c in coefficients] == [(column, s) for column, s, _ in STEPS]
    for c, (*_, reference), b, error in zip(coefficients, STEPS, beta, errors, strict=True):
        assert reference is None or c.reference == reference
        assert c.value == pytest.approx(exp(b), abs=0.02 * error * c.value)
        expected = [exp(b - Z * error), exp(b + Z * error)]
        assert [c.low, c.high] == pytest.approx(expected, rel=0.03 * error)


@pytest.fixture(scope="module")
def two_classes():
    table, risk, draw = patients()
    table["dead"] = np.where(draw.random(N) < 1 / (1 + np.exp(-risk)), "yes", "no")
    return table


def test_odds_ratios_of_a_shared_model_are_those_of_all_rows(two_classes):
    result, rows = trained(two_classes, "dead")
    every = pd.concat(rows)
    beta, errors = newton(design(every), every.dead == "yes")
    coefficients = pomona.coefficients(result)
    assert {(c.client, c.measure, c.outcome) for c in coefficients} == {
        ("", "odds ratio", "yes against no")
    }
    require_equal(coefficients, beta[1:], errors[1:])
    ten = pomona.coefficients(result, per={"age": -10})[0]
    assert (ten.step, ten.value) == ("-10", pytest.approx(coefficients[0].value ** -10))
    assert ten.low < ten.value < ten.high


def test_odds_ratios_of_a_client_s_own_model_are_those_of_its_rows(two_classes):
    result, rows = trained(two_classes, "dead", "separate", data={"fit": "client"})
    for name, client_rows in zip("AB", rows, strict=True):
        beta, errors = newton(design(client_rows), client_rows.dead == "yes")
        coefficients = [c for c in pomona.coefficients(result) if c.client == name]
        require_equal(coefficients, beta[1:], errors[1:])
        assert float(coefficients[2].reference) == pytest.approx(client_rows.lab.median(), rel=1e-3)


def test_a_shared_model_has_no_units_if_each_client_has_its_own(two_classes, tmp_path, capsys):
    result, _ = trained(
        two_classes, "dead", rounds=2, folder=tmp_path / "run", data={"fit": "client"}
    )
    assert pomona.coefficients(result) == []
    assert "units of its own" in call(capsys, "coefficients", tmp_path / "run")[2]


def without_interval(result: Result) -> set[str]:
    coefficients = pomona.coefficients(result)
    assert coefficients
    assert all(c.low is c.high is None for c in coefficients)
    return {c.reason for c in coefficients}


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"rounds": 3}, "not at the optimum"),
        ({"weight_decay": 0.1}, "not at the optimum"),
        ({"data": {"group_column": "family"}}, "group"),
        ({"privacy": PRIVACY}, "privacy"),
    ],
)
def test_no_interval_where_none_is_derived(two_classes, settings, reason):
    families = {"family": np.arange(N) // 2} if "data" in settings else {}
    table = two_classes.assign(site=np.where(np.arange(N) < N // 2, "A", "B"), **families)
    result, _ = trained(table, "dead", **({"rounds": 60} | settings))
    assert all(reason in text for text in without_interval(result))


def test_no_interval_for_what_the_rows_do_not_determine(two_classes):
    table = two_classes.assign(months=two_classes.age * 12).drop(columns=["lab", "seen", "stage"])
    result, _ = trained(table, "dead")
    assert without_interval(result) == {UNDETERMINED}


def test_no_interval_for_few_events(two_classes):
    rare = two_classes.assign(dead=np.where(two_classes.age > 75, two_classes.dead, "no"))
    result, _ = trained(rare, "dead", rounds=5)
    assert all("too few events" in text for text in without_interval(result))


def test_no_interval_where_columns_separate_the_answers(two_classes):
    table = two_classes[["dead", "site"]].assign(marker=np.where(two_classes.dead == "yes", 2, 1))
    result, _ = trained(table, "dead", rounds=1500, lr=4.0, momentum=0.9)
    assert all("separate" in text for text in without_interval(result))


def test_a_ratio_beyond_numbers_has_no_value_but_another_step_has(two_classes):
    table = two_classes[["dead", "site"]].assign(age=two_classes.age * 1e-9)
    result, _ = trained(table, "dead")
    (beyond,) = pomona.coefficients(result)
    assert (beyond.value, beyond.low, beyond.reason) == (None, None, OUT_OF_RANGE)
    (year,) = pomona.coefficients(result, per={"age": 1e-9})
    assert 1 < year.low < year.value < year.high < 2


def test_a_network_too_large_for_coefficients_is_noted(two_classes):
    wide = pd.DataFrame(np.random.default_rng(0).normal(size=(N, 300))).add_prefix("x")
    result, _ = trained(wide.assign(dead=two_classes.dead, site=two_classes.site), "dead", rounds=1)
    assert pomona.coefficients(result) == []
    assert any("602 parameters" in note.text for note in result.notes)


def test_hazard_ratios_need_times(two_classes):
    with pytest.raises(ConfigError, match="times to an event"):
        trained(two_classes, "dead", model="proportional-hazards")


def test_the_command_and_the_page_show_them(two_classes, tmp_path, capsys):
    result, _ = trained(two_classes, "dead", rounds=60, folder=tmp_path / "run")
    age = pomona.coefficients(result, per={"age": 10})[0]
    argv = ("coefficients", tmp_path / "run", "--per", "age=10")
    capsys.readouterr()
    (first, *_) = json.loads(call(capsys, *argv, "--json")[1])
    assert (first["step"], first["low"], first["high"]) == ("10", age.low, age.high)
    assert " to ".join(_rounded([age.value, age.low, age.high], 1)[1:]) in call(capsys, *argv)[1]
    assert "Odds ratios" in write([result], tmp_path).read_text()
    for per in ("stage=2", "age", "age=0"):
        code, _, message = call(capsys, *argv[:3], per)
        assert code == 2
        assert per.split("=")[0] in message
    assert "--client" in call(capsys, *argv[:2], "--client", "A")[2]


def test_a_ratio_near_1_has_digits_that_tell_its_limits_apart():
    assert _rounded((1.00052, 0.99982, 1.00122), 1) == ["1.00052", "0.99982", "1.00122"]
    assert _rounded((6.584, 0.8361, 51.82), 1) == ["6.58", "0.836", "51.8"]
    assert _rounded((1.0004,), 1) + _rounded((1.0,), 1) == ["1.00040", "1.00"]


def test_a_personalised_model_has_no_interval(two_classes):
    result, _ = trained(two_classes, "dead", "ditto", rounds=30)
    personal = [c for c in pomona.coefficients(result) if c.client]
    assert {c.client for c in personal} == {"A", "B"}
    assert all(c.low is None and "not at the optimum" in c.reason for c in personal)


def test_three_classes_are_compared_with_the_first():
    table, risk, draw = patients(1)
    table = table.drop(columns=["stage", "seen"]).assign(site="A")
    utility = np.stack([0 * risk, risk, risk / 2], 1) + draw.gumbel(size=(N, 3))
    table["grade"] = np.array(["low", "mid", "top"])[utility.argmax(1)]
    result, (rows,) = trained(table, "grade", "separate", rounds=250)
    columns = np.stack([rows.age, rows.lab.fillna(rows.lab.median()), rows.lab.isna()], 1)
    x = np.column_stack([np.ones(len(rows)), columns.astype(float)])
    one_hot = (rows.grade.to_numpy()[:, None] == ["mid", "top"]).astype(float)
    beta = np.zeros((2, 4))
    for _ in range(25):
        scores = np.exp(x @ beta.T)
        p = scores / (1 + scores.sum(1, keepdims=True))
        blocks = [
            [x.T @ (x * (p[:, [a]] * ((a == b) - p[:, [b]]))) for b in (0, 1)] for a in (0, 1)
        ]
        information = np.block(blocks)
        beta = beta + np.linalg.solve(information, ((one_hot - p).T @ x).ravel()).reshape(2, 4)
    errors = np.sqrt(np.diag(np.linalg.inv(information))).reshape(2, 4)
    coefficients = pomona.coefficients(result)
    assert {c.measure for c in coefficients} == {"relative risk ratio"}
    assert [c.outcome for c in coefficients[:2]] == ["mid against low", "top against low"]
    for c, b, error in zip(
        coefficients, beta[:, 1:].T.ravel(), errors[:, 1:].T.ravel(), strict=True
    ):
        assert np.log([c.value, c.low, c.high]) == pytest.approx(
            [b, b - Z * error, b + Z * error], abs=0.03 * error
        )


def test_differences_of_numbers_have_student_s_intervals():
    table, risk, draw = patients(2)
    table["days"] = 100 + 20 * risk + draw.normal(0, 30, N)
    result, rows = trained(table, "days", lr=0.3, data={"targets": "regression"})
    x, y = design(pd.concat(rows)), pd.concat(rows).days.to_numpy()
    beta, squares, *_ = np.linalg.lstsq(x, y, rcond=None)
    free = len(y) - x.shape[1]
    errors = np.sqrt(np.diag(np.linalg.inv(x.T @ x)) * squares[0] / free)
    t = stats.t.ppf(0.975, free)
    for c, b, error in zip(pomona.coefficients(result), beta[1:], errors[1:], strict=True):
        assert c.measure == "difference"
        assert [c.value, c.low, c.high] == pytest.approx(
            [b, b - t * error, b + t * error], abs=0.02 * error
        )


def require_odds_ratios(coefficients, design, answers):
    """Of each answer: its rows, and whether it is yes."""
    for k, (rows, yes) in enumerate(answers):
        beta, errors = newton(design[rows], yes)
        for c, b, error in zip(coefficients[k :: len(answers)], beta[1:], errors[1:], strict=True):
            expected = [b, b - Z * error, b + Z * error]
            assert np.log([c.value, c.low, c.high]) == pytest.approx(expected, abs=0.03 * error)


def test_each_label_has_odds_ratios():
    table, risk, draw = patients(4)
    for label in ("fever", "cough"):
        table[label] = 1 * (draw.random(N) < 1 / (1 + np.exp(-risk * (label == "fever"))))
    data = {"targets": "multilabel", "label_columns": ["fever", "cough"]}
    result, rows = trained(table, None, lr=2.0, data=data)
    every = pd.concat(rows)
    coefficients = pomona.coefficients(result)
    assert [c.outcome for c in coefficients[:2]] == ["fever", "cough"]
    answers = [(slice(None), every[label].to_numpy()) for label in ("fever", "cough")]
    require_odds_ratios(coefficients, design(every), answers)


def test_each_interval_of_time_has_odds_ratios_of_those_who_reach_it():
    table, risk, draw = patients(5)
    table = table.drop(columns=["stage", "seen", "lab"]).assign(site="A")
    time = draw.exponential(10 * np.exp(-risk))
    table = table.assign(time=np.minimum(time, 12.0), event=(time < 12) * 1)
    data = {"targets": "survival", "label_columns": ["time", "event"], "time_edges": [3.0, 12.0]}
    result, (every,) = trained(table, None, "separate", data=data)
    edges, observed = np.array([3.0, 12.0]), every.event.to_numpy() == 1
    times = every.time.to_numpy()
    answers = []
    for lower, stop in zip([0.0, *edges[:-1]], edges, strict=True):
        inside = observed & (lower < times) & (times <= stop)
        answers.append((inside | (times >= stop), inside[inside | (times >= stop)]))
    coefficients = pomona.coefficients(result)
    assert [c.outcome for c in coefficients] == [f"event in the interval to {e}" for e in (3, 12)]
    require_odds_ratios(coefficients, np.column_stack([np.ones(len(every)), every.age]), answers)


def test_hazard_ratios_are_those_of_cox():
    sksurv = pytest.importorskip("sksurv.linear_model")
    table, risk, draw = patients(3)
    time, censored = draw.exponential(10 * np.exp(-risk)), draw.exponential(30, N)
    table = table.assign(time=np.minimum(time, censored) + 0.01, event=(time < censored) * 1)
    data = {"targets": "survival", "label_columns": ["time", "event"]}
    steps = {"rounds": 3, "local_epochs": 100, "momentum": 0.9}
    result, (every,) = trained(
        table.assign(site="A"), None, "separate", "proportional-hazards", **steps, data=data
    )
    outcome = np.array(
        list(zip(every.event == 1, every.time, strict=True)), dtype=[("e", bool), ("t", float)]
    )
    cox = sksurv.CoxPHSurvivalAnalysis(ties="efron").fit(design(every)[:, 1:], outcome)
    coefficients = pomona.coefficients(result)
    assert {c.measure for c in coefficients} == {"hazard ratio"}
    for c, b in zip(coefficients, cox.coef_, strict=True):
        assert not c.reason
        error = np.log(c.high / c.low) / (2 * Z)
        assert np.log(c.value) == pytest.approx(b, abs=0.5 * error)
