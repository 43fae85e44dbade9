"""Settings of what a run learns: method, data, partition, network, rounds, seed and privacy."""

from collections.abc import Mapping
from typing import Annotated, Any, TypeGuard

from pydantic import BeforeValidator, Field, SerializeAsAny

from pomona import methods
from pomona.core.settings import Settings, require_name
from pomona.core.toml import Choices, expand_names
from pomona.data.axes import BundledImages
from pomona.data.section import CHOICES, Data
from pomona.methods import METHODS
from pomona.methods.base import MethodSettings
from pomona.methods.one_model.fedavg import FedAvg
from pomona.models import ModelSettings
from pomona.partition import RECIPES, PartitionSettings
from pomona.privacy.settings import Privacy, acknowledged


def _method(value: Any) -> Any:
    """Return the settings of a method by name.

    Raises ConfigError for a user's own that cannot be imported.
    """
    if isinstance(value, MethodSettings) and methods.resolve(value.name) is not type(value):
        raise ValueError(f"{type(value).__qualname__} does not match its name; leave name out")
    if not isinstance(value, Mapping):
        return value
    name = value.get("name")
    if not _names_method(name):
        name = require_name(value, [*METHODS, *methods.outside()])
    settings_class = methods.resolve(name)
    short_name = methods.default_name(settings_class)
    return settings_class.model_validate({**value, "name": short_name or name})


def _names_method(name: Any) -> TypeGuard[str]:
    return isinstance(name, str) and (":" in name or methods.is_registered(name))


def own_method(tree: Mapping[str, Any]) -> str | None:
    """Return the name of a tree's method if it is not one of the package."""
    name = _method_name(tree)
    return name if isinstance(name, str) and not methods.is_builtin(name) else None


def _method_name(tree: Mapping[str, Any]) -> Any:
    section = expand_names(tree).get("method")
    return section.get("name") if isinstance(section, Mapping) else None


def choices(tree: Mapping[str, Any]) -> Choices:
    """Return the settings selected by each section's name, including the tree's own method."""
    name = _method_name(tree)
    custom_method = {name: methods.resolve(name)} if _names_method(name) else {}
    return {"method": {**METHODS, **custom_method}, "partition": RECIPES, **CHOICES}


class RunSettings(Settings):
    """What is learned, from which data, for how long.

    Attributes:
        partition: who holds which rows; if not set, natural if the data name owners, else iid
        rounds: communication rounds
        seed: seed of all random numbers
        privacy: differentially private training of every client
    """

    method: Annotated[SerializeAsAny[MethodSettings], BeforeValidator(_method)] = FedAvg()
    data: Data = BundledImages()
    partition: PartitionSettings | None = None
    model: ModelSettings = ModelSettings()
    rounds: int = Field(40, ge=1, le=10**6)
    seed: int = Field(0, ge=0, lt=2**63)
    privacy: Privacy | None = None

    @property
    def void(self) -> str | None:
        """Why the epsilon of a private run is not a bound: there is no noise, it is known, or
        training records are released without it; None if it is a bound.
        """
        if not self.privacy:
            return None
        if self.privacy.void:
            return self.privacy.void
        releases = self.method.method().card.privacy.releases
        exact = [release.name for release in acknowledged(self.privacy, releases) if release.exact]
        return f"no bound: {', '.join(exact)} without noise" if exact else None
