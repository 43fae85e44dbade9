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
"""Pomona compares it with its own before any call; it changes with whatever the callers of these
modules see.
"""

NEEDS = {
    "amx": ("x86-64-v4", "avx512bf16", "amx"),
    "avx512_bf16": ("x86-64-v4", "avx512bf16"),
    "avx512": ("x86-64-v4",),
    "avx2": ("x86-64-v3",),
    "neon": (),
}


def kinds() -> tuple[str, ...]:
    """Kinds of processors that were compiled for and that this one belongs to, the fastest first;
    often several.
    """
    return tuple(
        kind
        for kind, needs in NEEDS.items()
        if all(map(supports, needs)) and find_spec(f"{__name__}._{kind}")
    )


def load(kind: str) -> ModuleType:
    """The module of a kind, with its ``Network``.

    Raises ValueError for one that this processor cannot run.
    """
    if kind not in kinds():
        raise ValueError(
            f"kind {kind!r} does not run here; this processor has {', '.join(kinds()) or 'none'}"
        )
    return import_module(f"{__name__}._{kind}")
