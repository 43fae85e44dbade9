"""A federation as an estimator of scikit-learn: each group of rows is a client."""

import sys
from collections.abc import Mapping
from numbers import Integral
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from pomona.config import merge, resolve
from pomona.core.errors import ConfigError, DataError, listed, suggestion
from pomona.core.notes import CallerWarnings
from pomona.core.toml import Tree, branch
from pomona.data.formats.frame import is_frame
from pomona.data.memory import from_clients
from pomona.data.python_values import names as names_of
from pomona.data.quality.repeated_rows import REMEDY
from pomona.personal import PersonalModel
from pomona.record.result import Result
from pomona.scenario import Scenario
from pomona.simulation import simulate


class PersonalizedFederation(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier of tables with a personal model for each group of rows.

    ``groups`` (n,) names each row's client, in ``fit`` and in ``predict``; or a column of X does,
    ``client_column``, which every tool of scikit-learn passes on, scorers too. Without them all
    rows are one client's. All rows given to ``fit`` train, except ``validation_share`` of them;
    ``result_`` tests on the training rows, so judge a fit on others. In ``cross_val_score`` and the
    like groups go by metadata routing, but not to scorers:
    ``set_fit_request(groups=True).set_score_request(groups=True)`` and ``params={"groups": ...}``.

    Args:
        method: a name of ``pomona methods``, or a section ``method``.
        rounds: of communication.
        lr: learning rate; "auto" finds one by a range test.
        client_column: column of X that names each row's client and is no feature: its name in a
            frame, or its number.
        validation_share: share of each client's rows that do not train, by which ``keep`` and
            ``stop`` among the settings choose a round.
        random_state: seed of all random numbers; None draws one.
        settings: all others of ``Config``, such as ``{"model": "logistic", "batch_size": 16}``.

    Attributes:
        classes_: (K,) the classes.
        clients_: names of the groups of ``fit``.
        n_features_in_: F, the number of columns, without that of clients.
        result_: the run, a ``pomona.Result``.

    >>> import numpy as np
    >>> from sklearn.datasets import load_breast_cancer
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> site = np.array(["Aachen", "Bergen", "Cadiz"])[np.arange(len(y)) % 3]
    >>> model = PersonalizedFederation("apple", rounds=5, lr=0.1).fit(X[:400], y[:400], site[:400])
    >>> model.score(X[400:], y[400:], site[400:]) > 0.9
    True
    """

    def __init__(
        self,
        method: str | Mapping[str, Any] = "fedavg-ft",
        *,
        rounds: int = 40,
        lr: float | str = "auto",
        client_column: str | int | None = None,
        validation_share: float = 0.0,
        random_state: int | np.random.RandomState | None = 0,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.method, self.rounds, self.lr = method, rounds, lr
        self.client_column, self.validation_share = client_column, validation_share
        self.random_state, self.settings = random_state, settings

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Train a model for each group.

        Args:
            X: (n, F) finite numbers, and the column of clients if there is one.
            y: (n,) classes.
            groups: (n,) the name of each row's client.

        Warns:
            PomonaWarning: each of ``result_.notes``, but for those on equal rows: the test rows of
                ``result_`` are its training rows, and frames that were resampled repeat rows.

        Raises:
            ValueError: scikit-learn rejects X or y.
            PomonaError: settings or data that cannot be run.
        """
        X, groups = self._split_groups(X, groups)
        X, y = validate_data(self, X, y, dtype="numeric")
        check_classification_targets(y)
        self.classes_, number = np.unique(y, return_inverse=True)
        rows = _rows(groups, len(X))
        self.clients_ = np.array(list(rows))
        client_data = {name: (X[indices], number[indices]) for name, indices in rows.items()}
        settings, section = self._settings()
        data = from_clients(
            client_data, test=client_data, classes=list(map(str, self.classes_)), **section
        )
        arguments = {
            "method": self.method,
            "rounds": self.rounds,
            "lr": self.lr,
            "seed": self._seed(),
        }
        defaults = {"workers": 1, "eval_every": 1 if section["validation_share"] else self.rounds}
        config = resolve(defaults, arguments, settings, {"data": data})
        warner = FitWarnings(sys._getframe(1))
        self.result_: Result = simulate(Scenario.prepare(config), callback=warner)
        return self

    def predict_proba(self, X: Any, groups: Any = None) -> NDArray[np.float64]:
        """Return (n, K) the probability of each class by the models of the rows' clients.

        Args:
            X: (n, F) finite numbers.
            groups: (n,) the name of each row's client; not needed if there is one.

        Raises DataError for a client that was not in ``fit``.
        """
        check_is_fitted(self)
        X, groups = self._split_groups(X, groups)
        X = validate_data(self, X, dtype="numeric", reset=False)
        probabilities = np.empty((len(X), len(self.classes_)))
        for name, indices in self._rows_by_client(groups, len(X)).items():
            model = PersonalModel.of(self.result_, name)
            outputs = model.outputs(X[indices])
            probabilities[indices] = torch.softmax(outputs.double(), dim=1).numpy()
        return probabilities

    def predict(self, X: Any, groups: Any = None) -> NDArray[Any]:
        """Return (n,) the most probable class of each row; arguments as ``predict_proba``."""
        chosen = self.predict_proba(X, groups).argmax(axis=1)
        return np.asarray(self.classes_[chosen])

    def score(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> float:
        """Return the accuracy over all rows; arguments as ``predict_proba``."""
        return float(accuracy_score(y, self.predict(X, groups), sample_weight=sample_weight))

    def _split_groups(self, X: Any, groups: Any) -> tuple[Any, Any]:
        """Return the features, and the name of each row's client.

        Raises DataError if they are given twice, or the column does not exist.
        """
        column = self.client_column
        if column is None:
            return X, groups
        if groups is not None:
            raise DataError(
                f"client_column = {column!r} names the clients, and so do groups; give one of them"
            )
        if is_frame(X):
            names = [str(name) for name in X.columns]
            if str(column) not in names:
                raise DataError(f"X has no column {column!r}; {suggestion(str(column), names)}")
            features = [name for name in X.columns if str(name) != str(column)]
            return X[features], X[X.columns[names.index(str(column))]]
        X = np.asarray(X)
        if X.ndim != 2 or not isinstance(column, int) or not -X.shape[1] <= column < X.shape[1]:
            raise DataError(
                f"client_column = {column!r}: X has shape {X.shape} and no names of columns; give "
                "a number of a column, or a frame"
            )
        return np.delete(X, column, axis=1), X[:, column]

    def _settings(self) -> tuple[Tree, Tree]:
        """Return the settings of a run, and those of its section data.

        Raises ConfigError for settings that ``fit`` sets.
        """
        tree: Tree = {}
        for key, value in (self.settings or {}).items():
            merge(tree, branch(key, value))
        set_by_parameters = {"method", "rounds", "lr", "seed", "partition", "clients"}
        if twice := sorted(tree.keys() & set_by_parameters):
            raise ConfigError(
                f"settings: {listed(twice)} would replace what parameters (method, rounds, lr, "
                "random_state) and groups say; leave it out"
            )
        section = tree.pop("data", {})
        set_by_fit = {"name", "path", "classes", "split", "test_share"}
        if not isinstance(section, dict) or section.keys() & set_by_fit:
            raise ConfigError(
                "settings: fit(X, y) gives the data, all of them for training; remove data, or "
                f"its keys {listed(sorted(set_by_fit))}"
            )
        if self.validation_share and "validation_share" in section:
            raise ConfigError("validation_share is set twice; leave it out of the settings")
        return tree, {"validation_share": self.validation_share, **section}

    def _seed(self) -> int:
        state: Any = self.random_state
        return int(
            state if isinstance(state, Integral) else check_random_state(state).randint(2**31)
        )

    def _rows_by_client(self, groups: Any, count: int) -> dict[str, NDArray[np.int64]]:
        """Return the rows of each client."""
        clients = self.clients_.tolist()
        if groups is None and len(clients) > 1:
            raise DataError(
                f"each of {len(clients)} clients has a model; give groups, a name for each row; "
                "where scikit-learn passes none (scoring=..., cross_val_predict), make the names a "
                "column of X and set client_column"
            )
        rows = {clients[0]: np.arange(count)} if groups is None else _rows(groups, count)
        if unknown := next((name for name in rows if name not in clients), None):
            raise DataError(
                f"groups: {unknown!r} was not in fit, and has no model; "
                f"{suggestion(unknown, clients)}"
            )
        return rows


class FitWarnings(CallerWarnings):
    """Warns of all notes but those on equal rows."""

    def on_note(self, text: str) -> None:
        """Warn of a note."""
        if REMEDY not in text:
            super().on_note(text)


def _rows(groups: Any, count: int) -> dict[str, NDArray[np.int64]]:
    """Return the rows of each group by its name, in order of names."""
    if groups is None:
        return {"all": np.arange(count)}
    names = np.array(names_of(groups, "groups"))
    if len(names) != count:
        raise DataError(f"X has {count} rows but groups has {len(names)}; give each row one")
    return {str(name): np.flatnonzero(names == name) for name in np.unique(names)}
