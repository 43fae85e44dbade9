"""One file per paper: settings, server half and client half, as pure functions on rows; table of
all methods.
"""

from importlib.metadata import entry_points
from inspect import isabstract
from typing import Any

from pomona.core.errors import ConfigError, suggestion
from pomona.core.registry import import_own_code, load
from pomona.methods.base import MethodSettings
from pomona.methods.low_rank.feddpa import FedDPA
from pomona.methods.low_rank.fedsa_lora import FedSALoRA
from pomona.methods.low_rank.ffa_lora import FFALoRA
from pomona.methods.mixtures.ala_variants import (
    DittoALA,
    FedAMPALA,
    FedPHPALA,
    FedProxALA,
    PerFedAvgALA,
    PFedMeALA,
)
from pomona.methods.mixtures.apfl import APFL
from pomona.methods.mixtures.apple import APPLE
from pomona.methods.mixtures.auto import Auto
from pomona.methods.mixtures.cfl import CFL
from pomona.methods.mixtures.fedala import FedALA
from pomona.methods.mixtures.fedamp import FedAMP, HeurFedAMP
from pomona.methods.mixtures.fedfomo import FedFomo
from pomona.methods.mixtures.fedfomo_ma import FedFomoMA
from pomona.methods.mixtures.ifca import IFCA
from pomona.methods.mixtures.pfedgraph import PFedGraph
from pomona.methods.mixtures.pgfed import PGFed, PGFedMo
from pomona.methods.one_model.fedavg import FedAvg, FedAvgFT, FedAvgLocal
from pomona.methods.one_model.fedavg_c import FedAvgC, FedProxC
from pomona.methods.one_model.fedavg_data import FedAvgData
from pomona.methods.one_model.fedcross import FedCross
from pomona.methods.one_model.feddyn import FedDyn
from pomona.methods.one_model.fednova import FedNova
from pomona.methods.one_model.fedopt import (
    OPTIMIZERS,
    FedAdagrad,
    FedAdam,
    FedAvgM,
    FedYogi,
    optimized,
)
from pomona.methods.one_model.fedprox import FedProx, FedProxFT
from pomona.methods.one_model.moon import MOON
from pomona.methods.one_model.q_fedavg import QFedAvg
from pomona.methods.one_model.scaffold import SCAFFOLD
from pomona.methods.personal_regularisation.ditto import Ditto
from pomona.methods.personal_regularisation.fedphp import FedPHP
from pomona.methods.personal_regularisation.mocha import MOCHA
from pomona.methods.personal_regularisation.mr_mtl import MRMTL
from pomona.methods.personal_regularisation.per_fedavg import PerFedAvg
from pomona.methods.personal_regularisation.pfedme import PFedMe
from pomona.methods.personal_regularisation.separate import Separate
from pomona.methods.prototypes.fedpac import FedPAC
from pomona.methods.prototypes.fedproto import FedProto
from pomona.methods.prototypes.fedtgp import FedTGP
from pomona.methods.prototypes.pfedfda import PFedFDA
from pomona.methods.robustness.robust import RULES, robustified
from pomona.methods.shared_parts.fedas import FedAS
from pomona.methods.shared_parts.fedbabu import FedBABU
from pomona.methods.shared_parts.fedbn import FedBN
from pomona.methods.shared_parts.fedcac import FedCAC
from pomona.methods.shared_parts.feddbe import FedDBE
from pomona.methods.shared_parts.fedper import FedPer
from pomona.methods.shared_parts.fedrep import FedRep
from pomona.methods.shared_parts.fedrod import FedRoD
from pomona.methods.shared_parts.fedselect import FedSelect
from pomona.methods.shared_parts.fenda import FENDA, PerFCL
from pomona.methods.shared_parts.floco import Floco
from pomona.methods.shared_parts.gpfl import GPFL
from pomona.methods.shared_parts.lg_fedavg import LGFedAvg
from pomona.methods.shared_parts.partialfed import PartialFed

_CLASSES: tuple[type[MethodSettings], ...] = (
    *(Separate, FedAvg, FedAvgLocal, FedAvgFT, FedAvgC, FedAvgData),
    *(FedAvgM, FedAdagrad, FedYogi, FedAdam, FedProx, FedProxFT, FedProxC, MOON, FedCross),
    *(SCAFFOLD, FedDyn, FedNova, QFedAvg),
    *(APFL, FedAMP, HeurFedAMP, PFedGraph, FedFomo, FedFomoMA, APPLE, PGFed, PGFedMo, FedALA),
    *(PerFedAvg, FedRep, PFedMe, Ditto, FedPHP, PartialFed, FedCAC, FedSelect),
    *(LGFedAvg, FedPer, FedBN, FedBABU, FedRoD, FENDA, PerFCL, GPFL, FedDBE),
    *(FedProto, FedTGP, FedPAC, PFedFDA, FedAS, Floco, FFALoRA, FedSALoRA, FedDPA),
    *(MRMTL, MOCHA, CFL, IFCA),
    *(FedProxALA, PerFedAvgALA, PFedMeALA, DittoALA, FedPHPALA, FedAMPALA, Auto),
)
"""In the order of lists for users."""

METHODS: dict[str, type[MethodSettings]] = {c.model_fields["name"].default: c for c in _CLASSES}
ENTRY_POINTS = "pomona.methods"
"""Entry points of other packages: settings classes, each under its field ``name``'s default."""

SUFFIXES = (*RULES, *OPTIMIZERS)
"""Suffixes of a method's name, after a plus sign: robust rules and server optimizers."""


def _split_suffixes(name: str) -> tuple[str, list[str]]:
    """Split a method's name into its base name and its suffixes: robust rule, server optimizer."""
    suffixes: list[str] = []
    for table in (OPTIMIZERS, RULES):
        inner, _, suffix = name.rpartition("+")
        if name not in METHODS and suffix in table:
            name, suffixes = inner, [suffix, *suffixes]
    return name, suffixes


def is_builtin(name: str) -> bool:
    """Return whether a name is in ``METHODS``, or is one of them with a robust rule, a server
    optimizer, or both in this order (``fedrep+median+adam``).
    """
    return _split_suffixes(name)[0] in METHODS


def outside() -> dict[str, str]:
    """Return ``module:Class`` of the methods of other packages, by name; nothing is imported."""
    points = entry_points(group=ENTRY_POINTS)
    return {point.name: point.value for point in points if point.name not in METHODS}


def is_registered(name: str) -> bool:
    """Return whether a name is built in, or another package's, with rules as for built-in ones."""
    return is_builtin(name) or _split_suffixes(name)[0] in outside()


def code_of(name: str) -> str:
    """Return ``module:Class`` of another package's method; other names as they are."""
    return name if is_builtin(name) else outside().get(_split_suffixes(name)[0], name)


def installed() -> dict[str, type[MethodSettings]]:
    """Return the methods of the package, and those of other packages, which are imported."""
    return METHODS | {name: resolve(name) for name in outside()}


def resolve(name: str) -> type[MethodSettings]:
    """Return the settings class of a registered name, or of a user's own ``module:Class``, which is
    imported.

    Raises ConfigError for an unknown name, a rule or a server optimizer on a method that does not
    average, a module that cannot be imported, or an object that is not a method or has another
    name.
    """
    if ":" in name:
        settings_class = _method_class(import_own_code(name), name)
        short = default_name(settings_class)
        if short and not (is_registered(short) and resolve(short) is settings_class):
            raise ConfigError(
                f"{name} has the short name {short!r}, under which it is not installed; leave out "
                f"its field name, or give its package an entry point of the group {ENTRY_POINTS}"
            )
        return settings_class
    if not is_registered(name):
        raise ConfigError(f"unknown method {name!r}; {suggestion(name, [*METHODS, *outside()])}")
    base_name, suffixes = _split_suffixes(name)
    settings_class = METHODS.get(base_name) or _outside_class(base_name)
    for suffix in suffixes:
        settings_class = (robustified if suffix in RULES else optimized)(settings_class, suffix)
    return settings_class


def default_name(settings_class: type[MethodSettings]) -> str:
    """Return a method's short name; empty if it has none."""
    return str(settings_class.model_fields["name"].default)


def _outside_class(name: str) -> type[MethodSettings]:
    target = outside()[name]
    settings_class = _method_class(load(target), target)
    if default_name(settings_class) != name:
        raise ConfigError(
            f"{target} is installed as method {name!r}; give it name: Literal[{name!r}] = {name!r}"
        )
    return settings_class


def _method_class(settings_class: Any, name: str) -> type[MethodSettings]:
    if not (
        isinstance(settings_class, type)
        and issubclass(settings_class, MethodSettings)
        and not isabstract(settings_class)
    ):
        raise ConfigError(
            f"{name} is not a method; give a subclass of pomona.methods.base.MethodSettings that "
            "defines method()"
        )
    return settings_class
