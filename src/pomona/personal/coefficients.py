"""Coefficients of linear models in the units of their tables, with standard errors.

The outputs are W x + b of standardised features x. A coefficient is a contrast c . theta of the
parameters theta: between two outputs (a class and the first one), along one unit of a column, or
between a category and its reference. So it does not depend on what the parameters have in common,
such as the sum of softmax's rows, or of one-hot features and intercept.

A model at the maximum of the likelihood of some rows is their maximum-likelihood estimate, whatever
training led there. Its errors follow from the observed information H, the second derivatives of the
rows' negative log-likelihood: variance c' H^+ c (Efron and Hinkley, Biometrika 1978), for numbers
with the residual variance. Whether a model is there is measured by its distance: with the gradient
g, sqrt(g' H^+ g) bounds how far any coefficient is from the maximum, in its standard errors, by the
Cauchy-Schwarz inequality, as one Newton step estimates it (Boyd and Vandenberghe, Convex
Optimization, 2004, section 9.5.1: the Newton decrement).

A model that all clients share is compared with all their training rows; a client's model with its
own rows. For a personal model away from that maximum (penalised, mixed, or stopped early) no
distribution is derived, so it has no error.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev

from pomona.data.preprocessing import Preprocessing, TableColumn
from pomona.federation.client import ClientRuntime
from pomona.federation.scoring import Model
from pomona.models import losses
from pomona.models.mlp import PROPORTIONAL_HAZARDS
from pomona.models.parameter_space import ParameterSlice, ParameterSpace
from pomona.objective.dataset import EVALUATION_BATCH, DeviceDataset
from pomona.personal.model import metadata
from pomona.record.coefficients import Change, Measure
from pomona.record.model_metadata import ModelMetadata
from pomona.scenario import Scenario
from pomona.tasks.survival import edge_name

MAX_PARAMETERS = 500  # of a model with coefficients
MAX_PRODUCTS = 10**11  # of the second derivatives of all rows
MAX_TERMS = 20_000  # of a run's record
MAX_DISTANCE = 0.25  # with which intervals at 95 % cover at least 94.3 %
SEPARATED = (
    "columns separate the answers, so that the maximum of the likelihood is infinite; leave out "
    "the columns with extreme ratios"
)
MIN_EVENTS = 5  # of each coefficient of a column
MAX_STEP = 0.75  # of a linear predictor by Newton, which is 1 or more at an infinite maximum
RANK_TOLERANCE = 1e-9  # share of the largest eigenvalue below which one is 0
UNIDENTIFIED = 1e-5  # share of a contrast outside the information's range
Floats = NDArray[np.float64]
Likelihood = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Direction:
    """What a coefficient compares in the inputs: ``features`` (F,), a change of the features."""

    column: str
    change: Change
    step: str
    reference: str
    features: Floats


@dataclass(frozen=True)
class Outcome:
    """What a coefficient compares in the outputs: ``weights`` (R,) of the rows of W."""

    name: str
    weights: Floats


def directions(description: ModelMetadata) -> list[Direction]:
    """Return the changes of a table's features by one unit of each number (a day, of dates), from
    the reference to each other category, and from the filled-in value to a gap.
    """
    table, n = description.preprocessing, description.input_shape[0]
    scale = np.broadcast_to(description.scale, n) * np.array((table and table.scale) or (1.0,))
    units = np.diag(1 / scale)
    if table is None:
        names = description.columns or tuple(f"column {k}" for k in range(n))
        return [
            Direction(name, "number", "1", "", unit)
            for name, unit in zip(names, units, strict=True)
        ]
    return list(_of_columns(table, units))


def _of_columns(table: Preprocessing, units: Floats) -> Iterator[Direction]:
    start = 0
    for column in table.columns:
        features = units[start : start + len(column.features)]
        start += len(features)
        if column.kind == "category":
            yield from _of_categories(column, features)
        else:
            step = "1 day" if column.kind == "date" else "1"
            yield Direction(column.name, column.kind, step, "", features[0])
        if column.flagged:
            yield Direction(column.name, "gap", "a gap", _filled(column), features[-1])


def _filled(column: TableColumn) -> str:
    """Return the value that stands in gaps, as text."""
    if column.kind == "date" and isinstance(column.fill, float):
        return str(np.datetime64("2000-01-01") + round(column.fill))
    return f"{column.fill:.4g}" if isinstance(column.fill, float) else str(column.fill)


def _of_categories(column: TableColumn, features: Floats) -> Iterator[Direction]:
    """Yield the change to each category from the filled-in one (the most frequent), or the
    first.
    """
    if len(column.values) == 1:
        yield Direction(column.name, "category", column.values[0], "all others", features[0])
        return
    base = column.values.index(column.fill) if column.fill in column.values else 0
    for k, value in enumerate(column.values):
        if k != base:
            change = features[k] - features[base]
            yield Direction(column.name, "category", value, column.values[base], change)


def outcomes(description: ModelMetadata) -> tuple[Measure, list[Outcome]]:
    """Return what a model's coefficients measure, and of which outcomes."""
    names, units = description.names, np.eye(description.outputs)
    if description.network.name == PROPORTIONAL_HAZARDS:
        return "hazard ratio", [Outcome("event", np.ones(1))]
    if description.targets == "classes":
        against = f" against {names[0]}"
        compared = [
            Outcome(name + against, row - units[0])
            for name, row in zip(names[1:], units[1:], strict=True)
        ]
        return "odds ratio" if len(names) == 2 else "relative risk ratio", compared
    if description.targets == "survival":
        names = tuple(f"event in the interval to {edge_name(edge)}" for edge in description.edges)
    if description.targets == "regression":
        scale = np.broadcast_to(description.target_scale, description.outputs)
        return "difference", [Outcome(*pair) for pair in zip(names, units * scale, strict=True)]
    return "odds ratio", [Outcome(*pair) for pair in zip(names, units, strict=True)]


@dataclass(frozen=True)
class Information:
    """Of some rows about a model's parameters: ``gradient`` (d,) and second derivatives ``inverse``
    (d, d), a pseudo-inverse, of their negative log-likelihood; ``span`` (d, d) projects on the
    range.
    """

    gradient: Floats
    inverse: Floats
    span: Floats

    @classmethod
    def of(cls, gradient: Floats, second: Floats) -> "Information":
        """Decompose second derivatives (d, d), scaled to a diagonal of 1."""
        if not np.isfinite(second).all():  # of residuals without variance
            gradient, second = np.zeros_like(gradient), np.zeros_like(second)
        diagonal = np.diag(second)
        scale = np.where(diagonal > 0, 1 / np.sqrt(np.where(diagonal > 0, diagonal, 1)), 0.0)
        values, vectors = np.linalg.eigh(scale[:, None] * second * scale)
        determined = values > RANK_TOLERANCE * max(float(values.max(initial=0)), 0.0)
        values, vectors = values[determined], vectors[:, determined]
        inverse = scale[:, None] * ((vectors / values) @ vectors.T) * scale
        unscale = np.where(scale > 0, 1 / np.where(scale > 0, scale, 1), 0.0)
        span = unscale[:, None] * (vectors @ vectors.T) * scale
        return cls(gradient, inverse, span)

    @property
    def step(self) -> Floats:
        """Newton's step (d,), which leads to the maximum if subtracted."""
        return self.inverse @ self.gradient

    @property
    def distance(self) -> float:
        """Largest distance of a coefficient from the maximum, in its standard errors."""
        return float(np.sqrt(max(0.0, float(self.gradient @ self.step))))

    def error(self, contrast: Floats) -> float | None:
        """Return the standard error of a contrast (d,); None if the rows do not determine it."""
        outside = np.linalg.norm(contrast - self.span @ contrast)
        if outside > UNIDENTIFIED * np.linalg.norm(contrast):
            return None
        return float(np.sqrt(contrast @ self.inverse @ contrast))


@dataclass(frozen=True)
class LinearModel:
    """A linear network and the data of a scenario, in double precision."""

    module: nn.Module
    parameters: tuple[ParameterSlice, ...]
    data: DeviceDataset
    steps: int  # coefficients of an outcome, without the intercept

    @classmethod
    def of(cls, scenario: Scenario) -> "LinearModel":
        """Return the network of a scenario whose network is ``linear``."""
        module = scenario.module().double().to(scenario.config.device)
        steps = len(directions(metadata(scenario, 0, ("", ""))))
        return cls(module, ParameterSpace(module).parameters, scenario.resident, steps)

    @property
    def weight(self) -> ParameterSlice:
        """W (R, F) of the outputs."""
        return next(p for p in self.parameters if p.name.endswith("weight"))

    def outputs(self, theta: Tensor, x: Tensor) -> Tensor:
        """Return the outputs (b, K) of parameters (d,)."""
        tensors = {p.name: p.view(theta) for p in self.parameters}
        return functional_call(self.module, tensors, (x,))  # type: ignore[no-any-return]

    def batches(self, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs and targets of rows (n,), in double precision."""
        for index in rows.split(EVALUATION_BATCH):
            x, y = self.data.gather(index)
            yield x.double(), y.double() if y.is_floating_point() else y

    def residual_variance(self, theta: Tensor, rows: Tensor) -> Tensor:
        """Return the variance (K,) of numbers around the outputs, over the remaining degrees of
        freedom.
        """
        squares = sum(((self.outputs(theta, x) - y) ** 2).sum(0) for x, y in self.batches(rows))
        return torch.as_tensor(squares) / self.freedom(rows)

    def freedom(self, rows: Tensor) -> int:
        """Return the residuals' degrees of freedom."""
        return max(1, len(rows) - self.steps - 1)

    def information(self, theta: Tensor, rows: Tensor) -> Information:
        """Return the information of rows (n,) about parameters (d,)."""
        likelihood = self._likelihood(theta, rows)

        def loss(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
            return likelihood(self.outputs(theta, x), y).sum()

        gradient = torch.zeros_like(theta)
        second = torch.zeros(len(theta), len(theta), dtype=theta.dtype, device=theta.device)
        for x, y in self.batches(rows):
            gradient += grad(loss)(theta, x, y)
            second += jacrev(grad(loss))(theta, x, y)
        return Information.of(gradient.cpu().numpy(), second.cpu().numpy())

    def separated(self, step: Floats, rows: Tensor, compared: Sequence[Outcome]) -> bool:
        """Return whether columns separate the answers of rows (n,), so that the likelihood has no
        finite maximum: a Newton step (d,) of any model near it changes a linear predictor by 1.
        """
        if self.data.targets == "regression":
            return False
        change = self.weight.view(torch.from_numpy(step)).numpy()
        directions = np.stack([outcome.weights @ change for outcome in compared], 1)
        moves = np.concatenate([x.cpu().numpy() @ directions for x, _ in self.batches(rows)])
        return bool(np.ptp(moves, axis=0).max() > MAX_STEP)

    def _likelihood(self, theta: Tensor, rows: Tensor) -> Likelihood:
        """Return a function of outputs (b, K) and targets: negative log-likelihoods."""
        if self.data.targets == "regression":
            precision = 1 / self.residual_variance(theta, rows)
            return lambda outputs, y: precision * (outputs - y) ** 2 / 2
        if self.data.targets == "multilabel":
            return nn.BCEWithLogitsLoss(reduction="none")
        if self.data.targets == "survival":
            return losses.hazard_surprise
        return losses.cross_entropy

    def events(self, rows: Tensor) -> int:
        """Return how often the rarer answer, or an observed event, occurs in rows (n,); the number
        of rows, for numbers.
        """
        y = self.data.y[rows]
        if self.data.targets == "classes":
            return int(torch.bincount(y.long(), minlength=self.weight.shape[0]).min())
        if self.data.targets == "multilabel":
            return int(torch.minimum(y.sum(0), (1 - y).sum(0)).min())
        if self.data.targets == "survival":
            events = y[:, 1].sum(0)
            return int(events.sum() if self.weight.shape[0] == 1 else events.min())
        return len(rows)


def linear(scenario: Scenario) -> bool:
    """Return whether a scenario's network is linear in a table's columns, and all of it is
    trained.
    """
    network = scenario.config.model
    by_name = network.name in ("logistic", PROPORTIONAL_HAZARDS)
    single = by_name or (network.name == "mlp" and not network.hidden)
    trains_all = network.train == "all" and network.bodies == 1
    return single and trains_all and scenario.dataset.kind == "table"


def _too_large(scenario: Scenario) -> str:
    """Return why a network is too large for coefficients; empty if it is not."""
    rows = sum(len(client.train) for client in scenario.partition.clients)
    limit = min(MAX_PARAMETERS, isqrt(MAX_PRODUCTS // max(1, rows)))
    parameters = len(scenario.initial())
    if parameters <= limit:
        return ""
    return f"{parameters} parameters, at most {limit} for {rows} training rows; leave out columns"


def recorded_rows(clients: ClientRuntime, client: int, best: int) -> Mapping[Model, Tensor]:
    """Return a client's models, rows (d,); ``best``: as of ``ClientRuntime.models``."""
    return {model: row.cpu() for model, row in clients.recorded.chosen(client, best).items()}


def coefficients(
    scenario: Scenario, rows: Sequence[Mapping[Model, Tensor]]
) -> Iterator[dict[str, Any]]:
    """Yield the record's events: coefficients of the model that all clients share, and of each
    client's headline model if it is not that; without terms, the reason why there are none.

    Args:
        scenario: whose network is ``linear``.
        rows: each client's models, in id order.
    """
    network, terms, too_large = LinearModel.of(scenario), 0, _too_large(scenario)
    for model, sources, shared in _distinct(scenario, rows):
        reason = too_large
        if shared and len(scenario.dataset.preprocessing) > 1:
            reason = "each client has units of its own (data.fit)"
        elif terms > MAX_TERMS:
            reason = f"a run records about {MAX_TERMS} coefficients"
        row = rows[sources[0]][model]
        event = _omitted(reason) if reason else _event(scenario, network, row, sources)
        terms += len(event["terms"])
        client = None if shared else sources[0]
        yield {"model": model[0], "when": model[1], "client": client, **event}


def _omitted(reason: str) -> dict[str, Any]:
    """Return an event without coefficients."""
    empty = {"measure": "none", "rows": 0, "distance": None, "freedom": None, "terms": []}
    return {"reason": reason, **empty}


def _distinct(
    scenario: Scenario, rows: Sequence[Mapping[Model, Tensor]]
) -> Iterator[tuple[Model, list[int], bool]]:
    """Yield each model, the clients whose it is, and whether all members share it."""
    headline = scenario.config.method.method().card.headline
    unseen = scenario.config.membership.unseen
    for model in dict.fromkeys([*(m for row in rows for m in row if m[0] == "global"), headline]):
        holders = [i for i, row in enumerate(rows) if model in row]
        members = [i for i in holders if i not in unseen]
        models = [rows[i][model] for i in members]
        if len(members) > 1 and all(model_row.equal(models[0]) for model_row in models):
            yield model, members, True
        elif model == headline:
            yield from ((model, [i], False) for i in holders)


def _event(
    scenario: Scenario, network: LinearModel, row: Tensor, clients: Sequence[int]
) -> dict[str, Any]:
    """Return the coefficients of a model (d,), with errors from the training rows of clients."""
    description = metadata(scenario, clients[0], scenario.config.method.method().card.headline)
    theta = row.to(network.data.x.device).double()
    samples = torch.cat([network.data.rows["train"][i] for i in clients])
    contrasts, (measure, compared) = _contrasts(description, network), outcomes(description)
    if not contrasts:
        return _omitted("there is nothing to compare: a single class, or no column")
    if not theta.isfinite().all():
        return _omitted("the model is not finite; lower lr")
    reason, distance, information = _dependent(scenario, network, samples, clients), None, None
    if not reason:
        information = network.information(theta, samples)
        distance = information.distance
        reason = _undetermined(network.events(samples), network.steps, distance)
        if not reason and network.separated(information.step, samples, compared):
            reason = SEPARATED
    if reason:
        information = None
    values = theta.cpu().numpy()
    return {
        "measure": measure,
        "rows": len(samples),
        "distance": distance,
        "freedom": network.freedom(samples) if description.targets == "regression" else None,
        "reason": reason,
        "terms": [
            {
                **term,
                "estimate": float(contrast @ values),
                "error": information.error(contrast) if information else None,
            }
            for term, contrast in contrasts
        ],
    }


def _contrasts(
    description: ModelMetadata, network: LinearModel
) -> list[tuple[dict[str, str], Floats]]:
    """Return what each coefficient compares, and its contrast (d,) of the parameters."""
    size, weight = network.parameters[-1].stop, network.weight
    contrasts = []
    for direction in directions(description):
        for outcome in outcomes(description)[1]:
            contrast = np.zeros(size)
            change = np.outer(outcome.weights, direction.features)
            contrast[weight.start : weight.stop] = change.ravel()
            names = {k: v for k, v in vars(direction).items() if k != "features"}
            contrasts.append(({**names, "outcome": outcome.name}, contrast))
    return contrasts


def _dependent(
    scenario: Scenario, network: LinearModel, samples: Tensor, clients: Sequence[int]
) -> str:
    """Return why the training rows of clients do not give errors; empty if they may."""
    if scenario.config.privacy:
        return "the information of rows is not covered by the privacy budget"
    if any(("train", i) in network.data.clustered for i in clients):
        return "rows of one group are not independent"
    if len(samples.unique()) < len(samples):
        return "clients share training rows"
    return ""


def _undetermined(events: int, steps: int, distance: float) -> str:
    """Return why a model's errors are not known; empty if they are."""
    if events < MIN_EVENTS * steps:
        return (
            f"too few events, {events}: {MIN_EVENTS * steps} are needed, {MIN_EVENTS} for each "
            "coefficient; leave out columns"
        )
    if not distance <= MAX_DISTANCE:
        return (
            f"not at the optimum of the likelihood but up to {distance:.2g} standard errors away; "
            "more rounds of full batches with one local epoch reach it, penalties and mixing do not"
        )
    return ""
