"""Forward, backward and step of a network, each in one call, on a CPU.

The same source is compiled for several kinds of processors, each into a module of its own.
``kinds()`` names those that this processor can run, the fastest first; ``load`` imports one.
"""

from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from types import ModuleType

from pomona_native._processor import supports

__version__ = version("pomona-native")
INTERFACE = 2
"""Pomona compares it with its own before any call; it changes with the modules' interface."""

FEATURES = {
    "amx": ("x86-64-v4", "avx512bf16", "amx"),
    "avx512_bf16": ("x86-64-v4", "avx512bf16"),
    "avx512": ("x86-64-v4",),
    "avx2": ("x86-64-v3",),
    "neon": (),
}


def kinds() -> tuple[str, ...]:
    """Return the kinds of processors with a module that runs here, the fastest first."""
    return tuple(
        processor
        for processor, features in FEATURES.items()
        if all(map(supports, features)) and find_spec(f"{__name__}._{processor}")
    )


def load(processor: str) -> ModuleType:
    """Return the module of a kind of processor, with its ``Network``.

    Raises ValueError for a kind that this processor cannot run.
    """
    if processor not in kinds():
        raise ValueError(
            f"kind {processor!r} does not run here; this one has {', '.join(kinds()) or 'none'}"
        )
    return import_module(f"{__name__}._{processor}")
