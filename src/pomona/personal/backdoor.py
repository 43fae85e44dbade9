"""How often honest clients' models answer a backdoor's trigger with its class."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from pomona.core.attack import Attack
from pomona.federation.client import ClientRuntime
from pomona.federation.scoring import Model
from pomona.federation.transport import LocalTransport
from pomona.metrics.nan_safe import mean_of_known
from pomona.partition.poison import triggered
from pomona.scenario import Scenario


def backdoor(
    scenario: Scenario, attack: Attack, transport: LocalTransport, headline: Model, best: int
) -> dict[str, Any]:
    """Return, by honest client, the share of its test samples of other classes that its headline
    model gives class 0 once they have the trigger; None without such samples or a model.

    ``best``: as of ``ClientRuntime.models``.
    """
    tested = np.unique(np.concatenate([c.test for c in scenario.partition.clients]))
    objective = replace(scenario, dataset=triggered(scenario.dataset, tested)).objective()
    honest = attack.honest(scenario.config.clients)
    rows = transport.collect(partial(_headline, model=headline, best=best), honest)
    shares: dict[str, float | None] = {}
    for client, row in zip(honest, rows, strict=True):
        answers = () if row is None else objective.batchwise(row, client, "test", _fooled)
        defined = bool(answers) and len(answers[0]) > 0
        shares[str(client)] = float(answers[0].double().mean()) if defined else None
    return {"clients": shares, "mean": mean_of_known(list(shares.values()))}


def _fooled(outputs: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
    """Return whether each sample of another class gets class 0."""
    return (outputs.argmax(1)[targets != 0] == 0,)


def _headline(clients: ClientRuntime, client: int, model: Model, best: int) -> Tensor | None:
    return clients.recorded.chosen(client, best).get(model)
