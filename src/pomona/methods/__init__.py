"""One file per paper: settings, server half and client half, as pure functions on rows; table of
all methods.
"""

from inspect import isabstract

from pomona.core.errors import ConfigError, suggestion
from pomona.core.registry import import_own_code
from pomona.methods.ala_variants import (
    DittoALA,
    FedAMPALA,
    FedPHPALA,
    FedProxALA,
    PerFedAvgALA,
    PFedMeALA,
)
from pomona.methods.apfl import APFL
from pomona.methods.apple import APPLE
from pomona.methods.auto import Auto
from pomona.methods.base import MethodSettings
from pomona.methods.cfl import CFL
from pomona.methods.ditto import Ditto
from pomona.methods.fedala import FedALA
from pomona.methods.fedamp import FedAMP, HeurFedAMP
from pomona.methods.fedas import FedAS
from pomona.methods.fedavg import FedAvg, FedAvgFT, FedAvgLocal
from pomona.methods.fedavg_c import FedAvgC, FedProxC
from pomona.methods.fedavg_data import FedAvgData
from pomona.methods.fedbabu import FedBABU
from pomona.methods.fedbn import FedBN
from pomona.methods.fedcac import FedCAC
from pomona.methods.feddbe import FedDBE
from pomona.methods.feddpa import FedDPA
from pomona.methods.feddyn import FedDyn
from pomona.methods.fedfomo import FedFomo
from pomona.methods.fedfomo_ma import FedFomoMA
from pomona.methods.fednova import FedNova
from pomona.methods.fedopt import OPTIMIZERS, FedAdagrad, FedAdam, FedAvgM, FedYogi, optimized
from pomona.methods.fedpac import FedPAC
from pomona.methods.fedper import FedPer
from pomona.methods.fedphp import FedPHP
from pomona.methods.fedproto import FedProto
from pomona.methods.fedprox import FedProx, FedProxFT
from pomona.methods.fedrep import FedRep
from pomona.methods.fedrod import FedRoD
from pomona.methods.fedsa_lora import FedSALoRA
from pomona.methods.fedselect import FedSelect
from pomona.methods.ffa_lora import FFALoRA
from pomona.methods.floco import Floco
from pomona.methods.ifca import IFCA
from pomona.methods.lg_fedavg import LGFedAvg
from pomona.methods.mocha import MOCHA
from pomona.methods.moon import MOON
from pomona.methods.mr_mtl import MRMTL
from pomona.methods.partialfed import PartialFed
from pomona.methods.per_fedavg import PerFedAvg
from pomona.methods.pfedfda import PFedFDA
from pomona.methods.pfedgraph import PFedGraph
from pomona.methods.pfedme import PFedMe
from pomona.methods.pgfed import PGFed, PGFedMo
from pomona.methods.q_fedavg import QFedAvg
from pomona.methods.robust import RULES, robustified
from pomona.methods.scaffold import SCAFFOLD
from pomona.methods.separate import Separate

_CLASSES: tuple[type[MethodSettings], ...] = (
    Separate,
    FedAvg,
    FedAvgLocal,
    FedAvgFT,
    FedAvgC,
    FedAvgData,
    FedAvgM,
    FedAdagrad,
    FedYogi,
    FedAdam,
    FedProx,
    FedProxFT,
    FedProxC,
    MOON,
    SCAFFOLD,
    FedDyn,
    FedNova,
    QFedAvg,
    APFL,
    FedAMP,
    HeurFedAMP,
    PFedGraph,
    FedFomo,
    FedFomoMA,
    APPLE,
    PGFed,
    PGFedMo,
    FedALA,
    PerFedAvg,
    FedRep,
    PFedMe,
    Ditto,
    FedPHP,
    PartialFed,
    FedCAC,
    FedSelect,
    LGFedAvg,
    FedPer,
    FedBN,
    FedBABU,
    FedRoD,
    FedDBE,
    FedProto,
    FedPAC,
    PFedFDA,
    FedAS,
    Floco,
    FFALoRA,
    FedSALoRA,
    FedDPA,
    MRMTL,
    MOCHA,
    CFL,
    IFCA,
    FedProxALA,
    PerFedAvgALA,
    PFedMeALA,
    DittoALA,
    FedPHPALA,
    FedAMPALA,
    Auto,
)

METHODS: dict[str, type[MethodSettings]] = {c.model_fields["name"].default: c for c in _CLASSES}


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


def resolve(name: str) -> type[MethodSettings]:
    """Return the settings class of a known name, or of a user's own ``module:Class``, which is
    imported.

    Raises ConfigError for an unknown name, a rule or a server optimizer on a method that does not
    average, a module that cannot be imported, or an object that is not a method.
    """
    if is_builtin(name):
        base_name, suffixes = _split_suffixes(name)
        settings_class = METHODS[base_name]
        for suffix in suffixes:
            settings_class = (robustified if suffix in RULES else optimized)(settings_class, suffix)
        return settings_class
    if ":" not in name:
        raise ConfigError(f"unknown method {name!r}; {suggestion(name, METHODS)}")
    settings_class = import_own_code(name)
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
