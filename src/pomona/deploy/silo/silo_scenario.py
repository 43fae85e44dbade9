"""A silo's seat: its data at its place among all, and its one account of what was spent on them."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from pomona.config import Config
from pomona.core.round import Roster
from pomona.deploy.agreement import Federation
from pomona.deploy.messages import Task
from pomona.deploy.silo.settings import SiloFile
from pomona.objective.private import PrivateObjective
from pomona.partition.partition import ClientRows
from pomona.privacy.keystore import require_sole
from pomona.scenario import Scenario


def seated(own: Scenario, federation: Federation, place: int, names: Mapping[int, str]) -> Scenario:
    """A scenario of all places of which this silo knows one."""
    nobody = ClientRows(*(np.empty(0, np.int64) for _ in range(3)))
    rows = [nobody] * federation.places
    rows[place] = own.partition.clients[0]
    known = {"data": own.config.data, "device": own.config.device}
    config: Config = federation.config().model_copy(update=known)
    titles = tuple(names.get(i, f"place {i}") for i in range(federation.places))
    return Scenario(config, own.dataset, replace(own.partition, clients=tuple(rows)), titles)


def counted(task: Task, config: Config) -> Roster:
    """All places as a task counts their samples, and as the agreement lets them weigh."""
    return Roster(task.sizes, config.largest_share)


def account(scenario: Scenario, folder: Path, place: int, own: SiloFile) -> PrivateObjective:
    """The private objective on the vaults in a folder, within the smaller of the budgets agreed on and accepted.

    Raises PrivacyError where there is the vault of another place: what was spent there would not count.
    """
    privacy = scenario.config.privacy
    assert privacy
    require_sole(folder, place)
    budgets = [b for b in (privacy.epsilon_budget, own.accept_epsilon) if b is not None]
    bounded = privacy.model_copy(update={"epsilon_budget": min(budgets, default=None)})
    return replace(scenario, config=scenario.config.model_copy(update={"privacy": bounded})).private(folder)
