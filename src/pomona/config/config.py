"""Configuration of a run: a frozen record, resolved from the command line over files over
defaults.
"""

import os
from collections.abc import Mapping
from typing import Any, Self

import tomli_w
from pydantic import ModelWrapValidatorHandler, ValidationError, model_validator

from pomona.config.layers import merge, with_sections
from pomona.config.machine import MachineSettings
from pomona.config.run import RunSettings, choices
from pomona.config.training import CohortSettings, EvaluationSettings, TrainingSettings
from pomona.core.toml import Tree, explained, flat, require_shallow
from pomona.core.toml import keys as known_keys
from pomona.models.settings import LoraTraining


class Config(MachineSettings, EvaluationSettings, CohortSettings, TrainingSettings, RunSettings):
    """Every setting of a run.

    Sections as in the TOML file; a section may be given by its name only.

    Raises ConfigError with every bad key or value, and suggestions for unknown keys.

    >>> config = Config(method={"name": "apple", "mu": 0.1}, rounds=20)
    >>> config.method.name, config.rounds, config.lr
    ('apple', 20, 'auto')
    >>> Config(rouns=20)
    Traceback (most recent call last):
    pomona.core.errors.ConfigError: unknown key 'rouns'; did you mean rounds?
    """

    @model_validator(mode="wrap")
    @classmethod
    def _expanded(cls, source: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Validate all input, from Python or a file: expand sections given by name, and raise
        faults as ConfigError.
        """
        if not isinstance(source, Mapping):
            return handler(source)
        require_shallow(source)
        tree = with_sections(source)
        try:
            return handler(tree)
        except ValidationError as fault:
            raise explained(fault, tree, cls, choices(tree)) from None

    @property
    def rows(self) -> int:
        """Number of clients trained in one call."""
        return self.rows_per_call or (1 if self.device == "cpu" else self.clients)

    @property
    def processes(self) -> int:
        """Number of worker processes for clients on this machine, if more than one."""
        return min(self.workers or len(os.sched_getaffinity(0)), self.clients)

    @property
    def adapt_rounds(self) -> int:
        """Training rounds of a client that did not train: one if a second would begin in the same
        state.
        """
        return self.membership.adapt_rounds if self.method.method().lasting else 1

    def tree(self) -> Tree:
        """Return plain values as in a TOML file, without keys that are not set."""
        omit_clients = "clients" not in self.model_fields_set and (
            not self.partition or self.partition.members
        )
        return self.model_dump(
            mode="json", exclude_none=True, exclude={"clients"} if omit_clients else None
        )

    @property
    def chosen(self) -> Tree:
        """Return settings by dotted key that differ from the defaults of the run and its method,
        data and network.
        """
        return flat(self.model_dump(mode="json", exclude_defaults=True, exclude_none=True))

    def toml(self) -> str:
        """Return a TOML file that repeats this run."""
        return tomli_w.dumps(self.tree())


def resolve(*layers: Mapping[str, Any]) -> Config:
    """Resolve layered trees, later ones on the right.

    Raises ConfigError with every bad key or value.
    """
    tree: Tree = {}
    for layer in layers:
        require_shallow(layer)
        merge(tree, with_sections(layer))
    return Config.model_validate(tree)


def fitted(config: Config) -> Config:
    """Return a run whose low-rank changes are trained as its method trains them, and whose network
    has the bodies, or the valve, that it needs.
    """
    needs = config.method.method().card.needs
    if needs.model:
        network = config.model.model_copy(update=needs.model)
        config = config.model_copy(update={"model": network})
    train, trained = config.model.train, needs.lora
    if trained == "both" or not isinstance(train, LoraTraining):
        return config
    lora = train.lora.model_copy(update={"trained": trained})
    network = config.model.model_copy(update={"train": LoraTraining(lora=lora)})
    return config.model_copy(update={"model": network})


def keys(tree: Tree) -> list[str]:
    """Return all dotted keys of a run with this method and partition."""
    return known_keys(tree, Config, choices(tree))
