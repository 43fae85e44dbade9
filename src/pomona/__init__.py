"""Personalized cross-silo federated learning: one model per client, built from the others' as far
as they help.

    >>> import pomona
    >>> result = pomona.run(method="apple", partition="dirichlet", clients=3, rounds=1, lr=0.1)
    >>> 0 < result.summary["models"]["personal, trained"]["last"]["test"] < 1
    True

The names in ``__all__`` are public; ``docs/api.md`` lists them and the other public modules.
Everything else may change without notice. Names are imported when first used, so ``import pomona``
loads no PyTorch.
"""

from typing import TYPE_CHECKING, Any

from pomona.core.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    DivergedError,
    LockedError,
    PomonaError,
    PomonaWarning,
    PrivacyError,
    QuorumError,
    StorageError,
)
from pomona.core.registry import load as _load

if TYPE_CHECKING:
    from pomona.cli.data import show_data
    from pomona.config import Config
    from pomona.core.notes import Note
    from pomona.estimator import PersonalizedFederation
    from pomona.experiments.in_python import bench
    from pomona.federation.callbacks import Callback
    from pomona.personal.elsewhere import elsewhere
    from pomona.record.coefficients import Coefficient, coefficients
    from pomona.record.paired_gain import Gain, gains
    from pomona.record.result import Result
    from pomona.record.rows import Evaluation, RoundRow
    from pomona.record.run_folder import load
    from pomona.results.figures.sections import figures_of as figures
    from pomona.simulation import run
    from pomona.user_training import personalize

__all__ = [
    "Callback",
    "CheckpointError",
    "Coefficient",
    "Config",
    "ConfigError",
    "DataError",
    "DivergedError",
    "Evaluation",
    "Gain",
    "LockedError",
    "Note",
    "PersonalizedFederation",
    "PomonaError",
    "PomonaWarning",
    "PrivacyError",
    "QuorumError",
    "Result",
    "RoundRow",
    "StorageError",
    "bench",
    "coefficients",
    "elsewhere",
    "figures",
    "gains",
    "load",
    "personalize",
    "run",
    "show_data",
]

_LAZY = {
    "Callback": "pomona.federation.callbacks:Callback",
    "Coefficient": "pomona.record.coefficients:Coefficient",
    "Config": "pomona.config:Config",
    "Evaluation": "pomona.record.rows:Evaluation",
    "Gain": "pomona.record.paired_gain:Gain",
    "Note": "pomona.core.notes:Note",
    "PersonalizedFederation": "pomona.estimator:PersonalizedFederation",
    "Result": "pomona.record.result:Result",
    "RoundRow": "pomona.record.rows:RoundRow",
    "bench": "pomona.experiments.in_python:bench",
    "coefficients": "pomona.record.coefficients:coefficients",
    "elsewhere": "pomona.personal.elsewhere:elsewhere",
    "figures": "pomona.results.figures.sections:figures_of",
    "gains": "pomona.record.paired_gain:gains",
    "load": "pomona.record.run_folder:load",
    "personalize": "pomona.user_training:personalize",
    "run": "pomona.simulation:run",
    "show_data": "pomona.cli.data:show_data",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'pomona' has no attribute {name!r}")
    return _load(_LAZY[name])


def __dir__() -> list[str]:
    return __all__
