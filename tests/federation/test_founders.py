"""What is learned before round 1 comes from the clients of round 1: others leave no trace in their
models, whatever they hold.
"""

import numpy as np
import pandas as pd
import pytest

import pomona
from pomona.config import Config
from pomona.data import from_clients, from_frame
from pomona.scenario import Scenario
from pomona.scenario.description import constant_scores

LATE = [{"unseen": [2]}, {"joins": {2: 2}}]
NAMES = ("a", "b", "c")


def numbers(factor, seed=0):
    """Three clients with a table each; the third's inputs are in another unit."""
    draw = np.random.default_rng(seed)
    tables = {name: (draw.normal(size=(40, 3)), np.arange(40) % 2) for name in NAMES}
    tables["c"] = (tables["c"][0] * factor, tables["c"][1])
    return from_clients(tables)


def costs(factor):
    draw = np.random.default_rng(0)
    tables = {name: (draw.normal(size=(40, 3)), draw.normal(size=40)) for name in NAMES}
    tables["c"] = (tables["c"][0], tables["c"][1] * factor)
    return from_clients(tables, targets="regression")


def close_numbers(factor):
    """Numbers that float32 does not resolve without the offset that is learned: the median."""
    draw = np.random.default_rng(0)
    tables = {name: (1e9 + draw.normal(size=(40, 3)), np.arange(40) % 2) for name in NAMES}
    tables["c"] = (tables["c"][0] * factor, tables["c"][1])
    return from_clients(tables)


def scans(factor):
    draw = np.random.default_rng(0)
    arrays = {
        name: (draw.integers(0, 60, (40, 4, 4)).astype(np.uint16), np.arange(40) % 2)
        for name in NAMES
    }
    arrays["c"] = ((arrays["c"][0] * min(factor, 1000)).astype(np.uint16), arrays["c"][1])
    return from_clients(arrays)


def times(factor):
    draw = np.random.default_rng(0)
    tables = {
        name: (
            draw.normal(size=(40, 3)),
            np.column_stack([draw.exponential(2, 40) + 0.1, np.arange(40) % 3 > 0]),
        )
        for name in NAMES
    }
    tables["c"][1][:, 0] *= factor
    return from_clients(tables, targets="survival")


def clinical(factor):
    """A table with gaps and categories: another usual category, more gaps, a category of its own."""
    draw = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "site": np.repeat(NAMES, 40),
            "age": draw.normal(60, 9, 120).round(),
            "stage": draw.choice(["I", "II"], 120),
            "ill": np.arange(120) % 2,
        }
    )
    frame.loc[draw.choice(120, 9, replace=False), "age"] = np.nan
    if factor != 1:
        frame.loc[80:, "age"] *= factor
        frame.loc[80:110, "stage"] = "IV"
        frame.loc[110:, "age"] = np.nan
    settings = {"missing": "median", "categories": ["stage"]}
    return from_frame(frame, label_column="ill", client_column="site", **settings)


SOURCES = [numbers, costs, close_numbers, scans, times, clinical]


def trained(data, membership, **settings):
    settings = {"rounds": 2, "lr": 0.1, "model": "logistic", "workers": 1} | settings
    if "joins" in membership:
        settings["rounds"] = 2
    return pomona.run(method="fedavg-ft", data=data, membership=membership, **settings)


def of_members(result, rounds):
    """All that is measured of the members' models, and with the last round the models."""
    values = [
        (e.round, e.model, e.when, e.split, client, value, loss)
        for e in result.evaluations
        if e.round <= rounds
        for client, value, loss in zip(e.clients, e.value, e.loss, strict=True)
        if client < 2
    ]
    models = {
        (client, name): tensor.numpy().tobytes()
        for client in range(2)
        for name, tensor in result.models[client].items()
    }
    return values, models if rounds > 1 else {}


@pytest.mark.long
@pytest.mark.parametrize("membership", LATE, ids=["unseen", "late"])
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.__name__)
def test_units_of_a_client_that_is_not_there_leave_no_trace(source, membership):
    rounds = 2 if "unseen" in membership else 1
    plain, scaled = (of_members(trained(source(f), membership), rounds) for f in (1, 1000))
    assert plain[0]
    assert plain == scaled


@pytest.mark.long
def test_so_it_is_for_the_rate_the_metric_and_the_constant_answer():
    """The third client has the rare class alone, and inputs at which every rate diverges."""

    def labels(value):
        draw = np.random.default_rng(0)
        tables = {name: (draw.normal(size=(40, 3)), np.arange(40) % 4 // 3) for name in NAMES}
        x = tables["c"][0] * 1e3
        return from_clients(tables | {"c": (x, np.full(40, value))}, classes=["no", "yes"])

    choices = []
    for value in (0, 1):
        config = Config(
            method="fedavg",
            data=labels(value),
            membership={"unseen": [2]},
            lr="auto",
            rounds=1,
            model="logistic",
            workers=1,
        )
        scenario = Scenario.prepare(config)
        result = pomona.run(config)
        constant = constant_scores(scenario)["all"][scenario.choice.metric.name]["clients"][:2]
        choices.append((scenario.choice, constant, result.config["lr"]))
    assert choices[0] == choices[1]
    # three quarters of the members' rows are of one class
    assert choices[0][0].metric.name == "auroc"


def test_words_of_a_client_that_comes_later_are_unknown(tmp_path):
    lines = ["site,text,y"]
    lines += [f"{name},word{name} same,{k % 2}" for name in NAMES for k in range(10)]
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    data = {"name": "text", "path": tmp_path / "rows.csv", "label_column": "y"}
    data |= {"text_columns": ["text"], "client_column": "site"}
    config = {"method": "fedavg", "data": data, "model": "fasttext", "lr": 0.1, "rounds": 1}
    vocabularies = [
        Scenario.prepare(Config(**config, membership=membership)).dataset.words
        for membership in ({}, LATE[0])
    ]
    assert {*vocabularies[0]} == {"same", "worda", "wordb", "wordc"}
    assert {*vocabularies[1]} == {"same", "worda", "wordb"}


def test_a_client_learns_its_own_form_from_its_own_rows():
    """With ``data.fit = client`` medians and moments are each client's own, whenever it comes."""
    frame = pd.DataFrame(
        {
            "site": np.repeat(NAMES, 40),
            "age": np.random.default_rng(0).normal(60, 9, 120),
            "ill": np.arange(120) % 2,
        }
    )
    frame.loc[80:, "age"] *= 1000
    data = from_frame(frame, label_column="ill", client_column="site", fit="client")
    settings = {"method": "fedavg", "data": data, "lr": 0.1, "rounds": 1, "model": "logistic"}
    late, always = (
        Scenario.prepare(Config(**settings, membership=membership)).dataset
        for membership in ({"unseen": [2]}, {})
    )
    assert late.preprocessing[2].shift == always.preprocessing[2].shift
    assert late.preprocessing[2].shift[0] > 10_000


def test_moments_are_those_of_the_clients_of_round_one():
    for membership, n in (({}, 3), (LATE[0], 2), (LATE[1], 2)):
        scenario = Scenario.prepare(
            Config(method="fedavg", data=numbers(1000), lr=0.1, rounds=2, membership=membership)
        )
        rows = np.concatenate([c.train for c in scenario.partition.clients[:n]])
        mean = scenario.dataset.x[rows].mean(axis=0, dtype=float)
        assert scenario.dataset.shift == pytest.approx(mean.tolist(), rel=1e-6)
