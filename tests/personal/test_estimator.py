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
    separate = pomona.PersonalizedFederation("separate", rounds=10, **QUICK).fit(X, Y, SITE)
    averaged = pomona.PersonalizedFederation("fedavg", rounds=10, **QUICK).fit(X, Y, SITE)
    new = DRAW.normal(size=(300, 3))
    at_a = np.where(new[:, 0] > 0, "ill", "well")
    at_c = np.where(new[:, 0] > 0, "well", "ill")
    assert separate.score(new, at_a, ["a"] * 300) > 0.9
    assert separate.score(new, at_c, ["c"] * 300) > 0.9
    assert averaged.score(new, at_c, ["c"] * 300) < 0.5
    assert list(separate.clients_) == ["a", "b", "c"]
    mixed = np.array(["c", "a"] * 150)
    expected = np.where(
        mixed == "a", separate.predict(new, ["a"] * 300), separate.predict(new, ["c"] * 300)
    )
    assert np.array_equal(separate.predict(new, mixed), expected)


def test_all_rows_of_a_fit_train():
    federation = pomona.PersonalizedFederation(rounds=1, **QUICK).fit(X, Y, SITE)
    assert federation.result_.about["sizes"] == {
        "train": [30] * 3,
        "validation": [0] * 3,
        "test": [30] * 3,
    }


def test_groups_take_scikit_learns_routes():
    estimator = pomona.PersonalizedFederation("separate", rounds=10, **QUICK)
    with sklearn.config_context(enable_metadata_routing=True):
        routed = clone(estimator).set_fit_request(groups=True).set_score_request(groups=True)
        scores = cross_val_score(routed, X, Y, cv=StratifiedKFold(3), params={"groups": SITE})
    assert (scores > 0.8).all()
    fitted = estimator.fit(X, Y, SITE)
    unpickled = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(unpickled.predict_proba(X, SITE), fitted.predict_proba(X, SITE))


def test_wrong_groups_are_told_in_a_line():
    estimator = pomona.PersonalizedFederation(rounds=1, **QUICK)
    with pytest.raises(DataError, match="X has 90 rows but groups has 9"):
        estimator.fit(X, Y, SITE[:9])
    estimator.fit(X, Y, SITE)
    with pytest.raises(DataError, match="each of 3 clients has a model; give groups"):
        estimator.predict(X)
    with pytest.raises(DataError, match="groups: 'd' was not in fit"):
        estimator.predict(X[:1], ["d"])
    with pytest.raises(ConfigError, match="unknown key 'rouns'; did you mean rounds"):
        pomona.PersonalizedFederation(settings={"rouns": 1}).fit(X, Y)


FRAME = pd.DataFrame(X, columns=list("pqr")).assign(site=SITE)
SEPARATE = pomona.PersonalizedFederation("separate", rounds=10, **QUICK)


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
    estimator = clone(SEPARATE).set_params(client_column=column)
    folds = StratifiedKFold(3, shuffle=True, random_state=0)
    for scoring in ("roc_auc", "accuracy", None):
        assert (cross_val_score(estimator, rows, Y, cv=folds, scoring=scoring) > 0.8).all()
    assert (cross_val_predict(estimator, rows, Y, cv=folds) == Y).mean() > 0.8
    search = GridSearchCV(estimator, {"rounds": [1, 10]}, scoring="roc_auc", cv=folds).fit(rows, Y)
    assert search.best_params_ == {"rounds": 10}
    assert search.best_estimator_.n_features_in_ == 3
    assert (search.predict(rows) == Y).mean() > 0.8


def test_a_column_of_clients_is_the_same_as_groups():
    column = clone(SEPARATE).set_params(client_column="site").fit(FRAME, Y)
    groups = clone(SEPARATE).fit(FRAME[list("pqr")], Y, SITE)
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
    "options",
    [
        {"validation_share": 0.2},
        {"settings": {"model": "logistic", "data": {"validation_share": 0.2}}},
        {"settings": {"model": "logistic", "data.validation_share": 0.2}},
    ],
)
def test_rows_for_validation_are_held_out_and_choose_a_round(options):
    settings = {**options.get("settings", {"model": "logistic"}), "keep": "best"}
    estimator = pomona.PersonalizedFederation(
        "separate", rounds=4, lr=0.5, **{**options, "settings": settings}
    )
    sizes = estimator.fit(X, Y, SITE).result_.about["sizes"]
    assert sizes["validation"] == [6] * 3
    assert {row.split for row in estimator.result_.evaluations} >= {"validation"}


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
    def fitted(state):
        return clone(SEPARATE).set_params(rounds=1, random_state=state).fit(X, Y, SITE)

    draws = [fitted(np.random.RandomState(3)).predict_proba(X, SITE) for _ in range(2)]
    assert np.array_equal(*draws)
    a, b = fitted(None), fitted(None)
    assert a.result_.config["seed"] != b.result_.config["seed"]
    assert fitted(np.int64(7)).result_.config["seed"] == 7


@pytest.mark.parametrize("method", ["apple", "fedrep"])
def test_models_in_memory_are_those_of_the_files(method, tmp_path):
    in_memory = pomona.run(tiny(method, rounds=2))
    in_folder = pomona.run(tiny(method, rounds=2), tmp_path / "run")
    images = DRAW.integers(0, 17, (5, 8, 8)).astype(np.uint8)
    for client, name in enumerate(in_memory.about["clients"]):
        a, b = PersonalModel.of(in_memory, client), PersonalModel.of(in_folder, name)
        assert a.about == b.about
        x = read(images, a.about).x
        assert torch.equal(a.outputs(x), b.outputs(x))
    with pytest.raises(DataError, match="no client 'nobody'"):
        PersonalModel.of(in_memory, "nobody")
    with pytest.raises(DataError, match="client 9 has no model"):
        PersonalModel.of(in_memory, 9)


def test_a_frozen_part_in_memory_is_that_of_the_files(tmp_path):
    network = {"model": {"name": "mlp", "hidden": [8], "train": "head"}}
    in_memory = pomona.run(tiny("fedavg", rounds=1, **network))
    in_folder = pomona.run(tiny("fedavg", rounds=1, **network), tmp_path / "run")
    images = DRAW.integers(0, 17, (5, 8, 8)).astype(np.uint8)
    a, b = PersonalModel.of(in_memory, 0), PersonalModel.of(in_folder, 0)
    x = read(images, a.about).x
    assert torch.equal(a.outputs(x), b.outputs(x))


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
    shifted = X + 1e9  # in float32 all the same
    model = PersonalModel.of(pomona.run(data=from_arrays(shifted, Y, SITE), rounds=1, lr=0.1), "b")
    np.savez(tmp_path / "new.npz", x=shifted)
    assert np.array_equal(read(shifted, model.about).x, read(tmp_path / "new.npz", model.about).x)
    assert len(np.unique(read(shifted, model.about).x)) == X.size
    with pytest.raises(
        DataError, match=r"x: samples have shape \(2,\), but the model takes \(3,\)"
    ):
        read(shifted[:, :2], model.about)
