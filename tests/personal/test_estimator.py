"""A federation as scikit-learn's estimator, and the models of a run in memory."""

import pickle

import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from sklearn.base import clone
from sklearn.model_selection import (
    GridSearchCV,
    StratifiedKFold,
    cross_val_predict,
    cross_val_score,
)
from sklearn.utils.estimator_checks import parametrize_with_checks

import pomona
from pomona.core.errors import ConfigError, DataError
from pomona.data import from_arrays, from_frame
from pomona.personal import PersonalModel
from pomona.personal.inputs import read
from problems import tiny

pytestmark = pytest.mark.long

DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(90, 3))
SITE = np.array(["b", "a", "c"])[np.arange(90) % 3]
Y = np.where((X[:, 0] > 0) ^ (SITE == "c"), "ill", "well")  # at c the other way round
QUICK = {"lr": 0.5, "settings": {"model": "logistic", "batch_size": 8}}


@parametrize_with_checks([pomona.PersonalizedFederation(rounds=10, **QUICK)])
def test_what_scikit_learn_expects_of_a_classifier(estimator, check):
    check(estimator)


def test_each_group_has_a_model_of_its_own():
    alone = pomona.PersonalizedFederation("separate", rounds=10, **QUICK).fit(X, Y, SITE)
    together = pomona.PersonalizedFederation("fedavg", rounds=10, **QUICK).fit(X, Y, SITE)
    new = DRAW.normal(size=(300, 3))
    at_a = np.where(new[:, 0] > 0, "ill", "well")
    at_c = np.where(new[:, 0] > 0, "well", "ill")
    assert alone.score(new, at_a, ["a"] * 300) > 0.9
    assert alone.score(new, at_c, ["c"] * 300) > 0.9
    assert together.score(new, at_c, ["c"] * 300) < 0.5
    assert list(alone.clients_) == ["a", "b", "c"]
    mixed = np.array(["c", "a"] * 150)
    expected = np.where(
        mixed == "a", alone.predict(new, ["a"] * 300), alone.predict(new, ["c"] * 300)
    )
    assert np.array_equal(alone.predict(new, mixed), expected)


def test_all_rows_of_a_fit_train():
    made = pomona.PersonalizedFederation(rounds=1, **QUICK).fit(X, Y, SITE)
    assert made.result_.about["sizes"] == {
        "train": [30] * 3,
        "validation": [0] * 3,
        "test": [30] * 3,
    }


def test_groups_take_scikit_learns_routes():
    made = pomona.PersonalizedFederation("separate", rounds=10, **QUICK)
    with sklearn.config_context(enable_metadata_routing=True):
        routed = clone(made).set_fit_request(groups=True).set_score_request(groups=True)
        found = cross_val_score(routed, X, Y, cv=StratifiedKFold(3), params={"groups": SITE})
    assert (found > 0.8).all()
    fitted = made.fit(X, Y, SITE)
    again = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(again.predict_proba(X, SITE), fitted.predict_proba(X, SITE))


def test_wrong_groups_are_told_in_a_line():
    made = pomona.PersonalizedFederation(rounds=1, **QUICK)
    with pytest.raises(DataError, match="X has 90 rows but groups has 9"):
        made.fit(X, Y, SITE[:9])
    made.fit(X, Y, SITE)
    with pytest.raises(DataError, match="each of 3 clients has a model; give groups"):
        made.predict(X)
    with pytest.raises(DataError, match="groups: 'd' was not in fit"):
        made.predict(X[:1], ["d"])
    with pytest.raises(ConfigError, match="unknown key 'rouns'; did you mean rounds"):
        pomona.PersonalizedFederation(settings={"rouns": 1}).fit(X, Y)


FRAME = pd.DataFrame(X, columns=list("pqr")).assign(site=SITE)
ALONE = pomona.PersonalizedFederation("separate", rounds=10, **QUICK)


@pytest.mark.parametrize(
    ("rows", "column"),
    [
        (FRAME, "site"),
        (FRAME[["site", "r", "q", "p"]], "site"),
        (FRAME.assign(site=FRAME.site.map({"a": 0, "b": 1, "c": 2})).to_numpy(), 3),
        (FRAME.to_numpy(dtype=object), -1),
    ],
)
def test_clients_of_a_column_reach_every_scorer(rows, column):
    made = clone(ALONE).set_params(client_column=column)
    folds = StratifiedKFold(3, shuffle=True, random_state=0)
    for scoring in ("roc_auc", "accuracy", None):
        assert (cross_val_score(made, rows, Y, cv=folds, scoring=scoring) > 0.8).all()
    assert (cross_val_predict(made, rows, Y, cv=folds) == Y).mean() > 0.8
    search = GridSearchCV(made, {"rounds": [1, 10]}, scoring="roc_auc", cv=folds).fit(rows, Y)
    assert search.best_params_ == {"rounds": 10}
    assert search.best_estimator_.n_features_in_ == 3
    assert (search.predict(rows) == Y).mean() > 0.8


def test_a_column_of_clients_is_the_same_as_groups():
    column = clone(ALONE).set_params(client_column="site").fit(FRAME, Y)
    groups = clone(ALONE).fit(FRAME[list("pqr")], Y, SITE)
    assert np.array_equal(
        column.predict_proba(FRAME), groups.predict_proba(FRAME[list("pqr")], SITE)
    )
    with pytest.raises(DataError, match=r"no column 'site'; known: p, q, r"):
        column.predict(FRAME[list("pqr")])
    with pytest.raises(DataError, match=r"client_column.*groups"):
        column.predict(FRAME, SITE)
    with pytest.raises(DataError, match=r"number of a column"):
        column.fit(X, Y)
    with pytest.raises(DataError, match=r"scoring=.*client_column"):
        groups.predict(FRAME[list("pqr")])


@pytest.mark.parametrize(
    "given",
    [
        {"validation_share": 0.2},
        {"settings": {"model": "logistic", "data": {"validation_share": 0.2}}},
        {"settings": {"model": "logistic", "data.validation_share": 0.2}},
    ],
)
def test_rows_for_validation_are_held_out_and_choose_a_round(given):
    settings = {**given.get("settings", {"model": "logistic"}), "keep": "best"}
    made = pomona.PersonalizedFederation(
        "separate", rounds=4, lr=0.5, **{**given, "settings": settings}
    )
    sizes = made.fit(X, Y, SITE).result_.about["sizes"]
    assert sizes["validation"] == [6] * 3
    assert {row.split for row in made.result_.evaluations} >= {"validation"}


@pytest.mark.parametrize("data", [{"path": "a.csv"}, {"name": "digits"}, {"classes": ["a"]}])
def test_other_data_among_the_settings_are_refused(data):
    with pytest.raises(ConfigError, match="data"):
        pomona.PersonalizedFederation(settings={"data": data}).fit(X, Y)
    with pytest.raises(ConfigError, match="client_column"):
        pomona.PersonalizedFederation(settings={"data": {"client_column": "a"}}).fit(X, Y)


@pytest.mark.parametrize(
    "settings", [{"rounds": 1}, {"lr": 0.5}, {"method": "fedavg"}, {"seed": 3}, {"partition": "iid"},
                 {"clients": 2}, {"data.test_share": 0.5}, {"data": {"split": "pooled"}}],
)  # fmt: skip
def test_settings_that_would_replace_parameters_or_have_no_effect_are_refused(settings):
    """A search over rounds or lr would compare equal models."""
    with pytest.raises(ConfigError, match=r"leave it out|fit.X, y. gives the data"):
        pomona.PersonalizedFederation(rounds=2, lr=0.1, settings=settings).fit(X, Y, SITE)


def test_a_seed_is_drawn_as_scikit_learn_does():
    def made(state):
        return clone(ALONE).set_params(rounds=1, random_state=state).fit(X, Y, SITE)

    draws = [made(np.random.RandomState(3)).predict_proba(X, SITE) for _ in range(2)]
    assert np.array_equal(*draws)
    one, other = made(None), made(None)
    assert one.result_.config["seed"] != other.result_.config["seed"]
    assert made(np.int64(7)).result_.config["seed"] == 7


@pytest.mark.parametrize("method", ["apple", "fedrep"])
def test_models_in_memory_are_those_of_the_files(method, tmp_path):
    here = pomona.run(tiny(method, rounds=2))
    there = pomona.run(tiny(method, rounds=2), tmp_path / "run")
    images = DRAW.integers(0, 17, (5, 8, 8)).astype(np.uint8)
    for client, name in enumerate(here.about["clients"]):
        one, other = PersonalModel.of(here, client), PersonalModel.of(there, name)
        assert one.about == other.about
        x = read(images, one.about).x
        assert torch.equal(one.outputs(x), other.outputs(x))
    with pytest.raises(DataError, match="no client 'nobody'"):
        PersonalModel.of(here, "nobody")
    with pytest.raises(DataError, match="client 9 has no model"):
        PersonalModel.of(here, 9)


def test_a_frozen_part_in_memory_is_that_of_the_files(tmp_path):
    part = {"model": {"name": "mlp", "hidden": [8], "train": "head"}}
    here = pomona.run(tiny("fedavg", rounds=1, **part))
    there = pomona.run(tiny("fedavg", rounds=1, **part), tmp_path / "run")
    images = DRAW.integers(0, 17, (5, 8, 8)).astype(np.uint8)
    one, other = PersonalModel.of(here, 0), PersonalModel.of(there, 0)
    x = read(images, one.about).x
    assert torch.equal(one.outputs(x), other.outputs(x))


@pytest.mark.parametrize("fit", ["pooled", "client"])
def test_new_rows_of_a_frame_are_read_as_those_of_a_file(fit, tmp_path):
    frame = pd.DataFrame(X, columns=list("pqr")).assign(site=SITE, outcome=Y)
    frame.loc[4, "q"] = np.nan
    columns = {"label_column": "outcome", "client_column": "site", "missing": "median", "fit": fit}
    result = pomona.run(data=from_frame(frame, **columns), rounds=1, lr=0.1)
    model = PersonalModel.of(result, "c")
    frame[["r", "p", "q"]].to_csv(tmp_path / "new.csv", index=False)
    x = read(frame[["r", "p", "q"]], model.about).x
    assert np.array_equal(x, read(tmp_path / "new.csv", model.about).x)
    assert len(model.predict(x)) == 90
    with pytest.raises(DataError, match="frame has other columns than the model: missing q"):
        read(frame[["r", "p"]], model.about)


def test_new_rows_of_an_array_are_read_as_those_of_an_archive(tmp_path):
    far = X + 1e9  # in float32 all the same
    model = PersonalModel.of(pomona.run(data=from_arrays(far, Y, SITE), rounds=1, lr=0.1), "b")
    np.savez(tmp_path / "new.npz", x=far)
    assert np.array_equal(read(far, model.about).x, read(tmp_path / "new.npz", model.about).x)
    assert len(np.unique(read(far, model.about).x)) == X.size
    with pytest.raises(
        DataError, match=r"x: samples have shape \(2,\), but the model takes \(3,\)"
    ):
        read(far[:, :2], model.about)
