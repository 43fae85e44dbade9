"""A silo's scenario: its own data, checked against the agreement, and its place among all
members.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, sqrt
from pathlib import Path

import numpy as np
import torch

from pomona.config import Config, resolve
from pomona.core.errors import ConfigError, worded
from pomona.core.round import Roster
from pomona.core.toml import expand_names
from pomona.federation.batchnorm_statistics import with_statistics
from pomona.federation.round_plan import round_of
from pomona.methods.base import Downlink, MethodSettings, Server
from pomona.objective.private import PrivateObjective
from pomona.partition import divide
from pomona.partition.divergence import noted
from pomona.partition.partition import ClientRows
from pomona.privacy.noise import require_sole
from pomona.scenario import Scenario
from pomona.scenario.description import epsilons
from pomona_federation.agreement import StudyAgreement
from pomona_federation.messages.message_bodies import EntryForm, Task
from pomona_federation.messages.tensor_bytes import Encoding, entry_form_of
from pomona_federation.silo.kept_data import own_data
from pomona_federation.silo.privacy_budget import Cost
from pomona_federation.silo.settings import SiloFile


def require_device(name: str) -> str:
    """Test a device of ``silo.toml``, make this process use that GPU, and return the device's kind,
    cpu or cuda.

    Raises ConfigError if PyTorch cannot use it: no CUDA, no driver, no such GPU, or no free memory
    there.
    """
    device_type = name.partition(":")[0]
    if device_type == "cuda":
        try:
            torch.cuda.set_device(name)
            torch.zeros(1, device=name)
        except Exception as fault:  # of any kind, from the driver or the build
            raise ConfigError(
                f"device = {name!r}, but PyTorch cannot use it ({worded(fault)}); set device = "
                "'cpu' in silo.toml, or check the GPU's driver and PyTorch's build"
            ) from fault
    return device_type


def _config(silo: SiloFile, terms: StudyAgreement, method: MethodSettings | None = None) -> Config:
    """The run with this silo as its only client; with another method, if one is given, and then
    without noise and sums.
    """
    overrides = {
        "data": silo.data.model_dump(mode="json", exclude_unset=True),
        "clients": 1,
        "workers": 1,
    }
    overrides["metric"], overrides["engine"] = terms.config.metric, terms.config.engine
    overrides["device"] = require_device(silo.device)
    resolved = resolve(expand_names(terms.run_study.run), overrides)
    if method is None:
        return resolved
    client_config = {"method": method, "privacy": None, "secure_aggregation": None}
    return resolved.model_copy(update=client_config)


def own_scenario(
    silo: SiloFile, terms: StudyAgreement, member: int, method: MethodSettings | None = None
) -> Scenario:
    """Read, check and split the silo's data, with the draws of its place among all members
    (``member_id``), as a simulation of all of them splits it.

    Raises DataError or ConfigError before any computation.
    """
    settings = _config(silo, terms, method)
    dataset = own_data(settings.data, terms.task)
    partition = divide(dataset, settings.data, settings.partition, 1, settings.seed, member)
    recipe = {**partition.recipe, "data": "clients"}  # not a path: files may be moved in a study
    scenario = Scenario(settings, noted(dataset, partition), replace(partition, recipe=recipe))
    scenario.check(agreed_reader=True)
    return scenario


def at_member(
    local: Scenario, terms: StudyAgreement, member: int, names: Mapping[int, str]
) -> Scenario:
    """A scenario of all places, with the data of this silo only."""
    no_rows = ClientRows(*(np.empty(0, np.int64) for _ in range(3)))
    rows = [no_rows] * terms.federation.places
    rows[member] = local.partition.clients[0]
    overrides = {"data": local.config.data, "device": local.config.device}
    config: Config = terms.config.model_copy(update=overrides)
    titles = tuple(names.get(i, f"place {i}") for i in range(terms.federation.places))
    return Scenario(config, local.dataset, replace(local.partition, clients=tuple(rows)), titles)


def roster_of(task: Task, config: Config) -> Roster:
    """The roster of a task: every place's samples, and the agreed maximum share."""
    return Roster(task.sizes, config.largest_share)


def worst_cost(
    local: Scenario, earlier: Collection[float] = (), own_noise_only: bool = False
) -> Cost:
    """Worst-case cost of a whole run on the silo's own data; unbounded if anything is released
    without noise. ``own_noise_only``: by the silo's own noise alone, if others' counts.

    ``earlier``: epsilons of earlier runs of the same study. A further run draws the same batches
    again, so its cost is what raises their sum to the epsilon of that many releases in place of
    each.
    """
    privacy = local.config.privacy
    if privacy is None or local.config.void:
        return Cost(inf)
    if not earlier:
        return Cost(max(epsilons(local, own_noise_only)), privacy.delta)
    combined = privacy.model_copy(
        update={"noise_multiplier": privacy.noise_multiplier / sqrt(1 + len(earlier))}
    )
    repeated = replace(local, config=local.config.model_copy(update={"privacy": combined}))
    # one ledger, at the first run's delta
    return Cost(max(*epsilons(local), max(epsilons(repeated)) - sum(earlier)))


def private_objective(
    scenario: Scenario, folder: Path, member: int, silo: SiloFile, run: str
) -> PrivateObjective:
    """The private objective of a run with the key stores in a folder, within the smaller of the
    agreed and the accepted budget.

    Raises PrivacyError if the key store belongs to another place: what was spent there would not
    count.
    """
    privacy = scenario.config.privacy
    assert privacy
    require_sole(folder, member)
    budgets = [b for b in (privacy.epsilon_budget, silo.accept_epsilon) if b is not None]
    bounded = privacy.model_copy(update={"epsilon_budget": min(budgets, default=None)})
    return replace(
        scenario, config=scenario.config.model_copy(update={"privacy": bounded})
    ).private(folder, run)


@dataclass(frozen=True)
class InitialDownlink:
    """This silo's downlink of the first round, which every member can compute; computed on first
    use.

    Attributes:
        task: from the server; its counts have been checked.
        server: the server half of the agreed method.
        scenario: makes the silo's own data at its place among all.
    """

    task: Task
    server: Server
    scenario: Callable[[], Scenario]

    @cached_property
    def downlink(self) -> Downlink:
        """The first round's downlink."""
        scenario = self.scenario()
        server = with_statistics(self.server, scenario.initial)
        roster = roster_of(self.task, scenario.config)
        state = server.start(scenario.initial, roster, scenario.config.seed)
        return server.downlink(state, (self.task.place,), roster, round_of(scenario.config, 1))

    @property
    def entry_forms(self) -> dict[str, EntryForm]:
        """The form of each entry, the same in every round."""
        return {key: entry_form_of(rows) for key, rows in self.downlink.items()}

    def row(self, key: str, j: int, encoding: Encoding) -> bytes:
        """An entry's initial row for a place."""
        return encoding.pack(self.downlink[key].bank[j])
