"""Readers that load a name or a file as one checked ``Dataset``.

Names are imported when first used: settings of data are checked without the readers' libraries.
"""

from typing import TYPE_CHECKING, Any

from pomona.core.registry import load as _load

if TYPE_CHECKING:
    from pomona.data.catalogue import Listing, describe
    from pomona.data.dataset import Dataset, Owners
    from pomona.data.memory import from_arrays, from_clients, from_frame
    from pomona.data.reading import DATASETS, read
    from pomona.data.section import data_settings
    from pomona.data.settings import ClientFiles, DataSettings
    from pomona.data.validation import checked

__all__ = [
    "DATASETS",
    "ClientFiles",
    "DataSettings",
    "Dataset",
    "Listing",
    "Owners",
    "checked",
    "data_settings",
    "describe",
    "from_arrays",
    "from_clients",
    "from_frame",
    "read",
]

_MODULES = {
    "catalogue": ("Listing", "describe"),
    "dataset": ("Dataset", "Owners"),
    "memory": ("from_arrays", "from_clients", "from_frame"),
    "reading": ("DATASETS", "read"),
    "section": ("data_settings",),
    "settings": ("ClientFiles", "DataSettings"),
    "validation": ("checked",),
}
_LAZY = {name: f"{module}:{name}" for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'pomona.data' has no attribute {name!r}")
    return _load(f"pomona.data.{_LAZY[name]}")


def __dir__() -> list[str]:
    return __all__
