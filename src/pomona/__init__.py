"""Personalized cross-silo federated learning: a model of its own for every client, built from the others' as they help.

    import pomona
    result = pomona.run(pomona.Config(method={"name": "apple"}, partition={"name": "dirichlet"}))
    result.summary["models"]["personal, trained"]["last"]

Only what stands here is public. Names are imported when first used, so ``import pomona`` loads no PyTorch.
"""

from typing import TYPE_CHECKING, Any

from pomona.core.errors import ConfigError, DataError, DivergedError, LockedError, PomonaError, StorageError
from pomona.core.registry import load as _load

if TYPE_CHECKING:
    from pomona.config import Config
    from pomona.record.reading import load
    from pomona.record.record import Evaluation, Result, RoundRow
    from pomona.simulation import run

__all__ = [
    "Config",
    "ConfigError",
    "DataError",
    "DivergedError",
    "Evaluation",
    "LockedError",
    "PomonaError",
    "Result",
    "RoundRow",
    "StorageError",
    "load",
    "run",
]

_LAZY = {
    "Config": "pomona.config:Config",
    "Evaluation": "pomona.record.record:Evaluation",
    "Result": "pomona.record.record:Result",
    "RoundRow": "pomona.record.record:RoundRow",
    "load": "pomona.record.reading:load",
    "run": "pomona.simulation:run",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'pomona' has no attribute {name!r}")
    return _load(_LAZY[name])
