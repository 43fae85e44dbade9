"""Coefficients of linear models in the units of their tables, with standard errors.

A coefficient is a contrast c . theta of the parameters theta. A model at the maximum of the
likelihood of some rows is their maximum-likelihood estimate, whatever training led there. Its
errors follow from the observed information H, the second derivatives of the rows' negative
log-likelihood: variance c' H^+ c (Efron and Hinkley, Biometrika 1978), for numbers with the
residual variance. Whether a model is there is measured by its distance: with the gradient g,
sqrt(g' H^+ g) bounds how far any coefficient is from the maximum, in its standard errors, by the
Cauchy-Schwarz inequality, as one Newton step estimates it (Boyd and Vandenberghe, Convex
Optimization, 2004, section 9.5.1: the Newton decrement).

A model that all clients share is compared with all their training rows; a client's model with its
own rows. For a personal model away from that maximum (penalised, mixed, or stopped early) no
distribution is derived, so it has no error.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from math import isqrt
from typing import Any

import torch
from torch import Tensor

from pomona.federation.client import ClientRuntime
from pomona.federation.scoring import Model
from pomona.models.mlp import PROPORTIONAL_HAZARDS
from pomona.personal.contrasts import Contrasts
from pomona.personal.information import LinearModel
from pomona.personal.model import metadata
from pomona.scenario import Scenario

MAX_PARAMETERS = 500  # of a model with coefficients
MAX_PRODUCTS = 10**11  # of the second derivatives of all rows
MAX_TERMS = 20_000  # of a run's record
MAX_DISTANCE = 0.25  # with which intervals at 95 % cover at least 94.3 %
SEPARATED = (
    "columns separate the answers, so that the maximum of the likelihood is infinite; leave out "
    "the columns with extreme ratios"
)
MIN_EVENTS = 5  # of each coefficient of a column


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
    """Return a client's models, rows (d,); ``best``: as of ``client_queries.models``."""
    return {model: row.cpu() for model, row in clients.store.recorded.chosen(client, best).items()}


def coefficients(
    scenario: Scenario, rows: Sequence[Mapping[Model, Tensor]]
) -> Iterator[dict[str, Any]]:
    """Yield the record's events: coefficients of the model that all clients share, and of each
    client's headline model if it is not that; without terms, the reason why there are none.

    Args:
        scenario: whose network is ``linear``.
        rows: each client's models, in id order.
    """
    terms, too_large = 0, _too_large(scenario)
    units = max(1, len(scenario.dataset.preprocessing))

    @cache  # late: of a network that is too large, they take much memory
    def network() -> LinearModel:
        return LinearModel.of(scenario)

    @cache
    def contrasts(client: int) -> Contrasts:
        description = metadata(scenario, client, ("", ""))
        return Contrasts.of(description, network().weight, len(scenario.initial()))

    for model, sources, shared in _distinct(scenario, rows):
        reason = too_large
        if shared and len(scenario.dataset.preprocessing) > 1:
            reason = "each client has units of its own (data.fit)"
        elif terms > MAX_TERMS:
            reason = f"a run records about {MAX_TERMS} coefficients"
        event = _omitted(reason)
        if not reason:
            compared, row = contrasts(sources[0] % units), rows[sources[0]][model]
            event = _event(scenario, network(), row, sources, compared)
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
    for model in dict.fromkeys([*(m for m in chain(*rows) if m[0] == "global"), headline]):
        holders = [i for i, row in enumerate(rows) if model in row]
        members = [i for i in holders if i not in unseen]
        if len(members) > 1 and all(rows[i][model].equal(rows[members[0]][model]) for i in members):
            yield model, members, True
        elif model == headline:
            yield from ((model, [i], False) for i in holders)


def _event(
    scenario: Scenario,
    network: LinearModel,
    row: Tensor,
    clients: Sequence[int],
    contrasts: Contrasts,
) -> dict[str, Any]:
    """Return the coefficients of a model (d,), with errors from the training rows of clients."""
    theta = row.to(network.data.x.device).double()
    samples = torch.cat([network.data.rows["train"][i] for i in clients])
    if not contrasts.names:
        return _omitted("there is nothing to compare: a single class, or no column")
    if not theta.isfinite().all():
        return _omitted("the model is not finite; lower lr")
    reason, distance = _dependent(scenario, network, samples, clients), None
    errors: list[float | None] = [None] * len(contrasts.names)
    if not reason:
        information = network.information(theta, samples)
        distance = information.distance
        reason = _undetermined(network.events(samples), network.steps, distance)
        if not reason and network.separated(information.step, samples, contrasts.outcomes):
            reason = SEPARATED
        if not reason:
            errors = information.errors(contrasts.rows)
    estimates = contrasts.rows @ theta.cpu().numpy()
    return {
        "measure": contrasts.measure,
        "rows": len(samples),
        "distance": distance,
        "freedom": network.freedom(samples) if network.data.targets == "regression" else None,
        "reason": reason,
        "terms": [
            {**names, "estimate": float(estimate), "error": error}
            for names, estimate, error in zip(contrasts.names, estimates, errors, strict=True)
        ],
    }


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
