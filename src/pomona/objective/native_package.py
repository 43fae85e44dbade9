"""The optional package pomona-native, which ``make native`` builds: whether it can be used here, and which it is."""

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

PACKAGE = "pomona_native"
INTERFACE = 1
"""The package's calls as they are made here; a build with other calls has another number, an old one none."""


@dataclass(frozen=True)
class NativePackage:
    """The package for one kind of processor.

    Attributes:
        version: its version.
        kind: of processor.
        module: what was compiled for this kind, with ``Network``, ``mix`` and ``move``.
    """

    version: str
    kind: str
    module: Any

    @property
    def bf16(self) -> bool:
        """Whether it multiplies bf16 numbers by an instruction of the processor; otherwise it emulates that."""
        return bool(self.module.BF16)


def native_package(kind: str = "") -> NativePackage | str:
    """The package for a kind of processor, the fastest if empty; or why it cannot be used here."""
    if find_spec(PACKAGE) is None:
        return "the package pomona-native is not installed"
    try:
        package = import_module(PACKAGE)
        if (found := getattr(package, "INTERFACE", 0)) != INTERFACE:
            return f"the package pomona-native has interface {found}, this Pomona calls {INTERFACE}: run make native"
        if not (kinds := package.kinds()):
            return "this processor has neither AVX2 nor NEON"
        kind = kind or kinds[0]
        return NativePackage(package.__version__, kind, package.load(kind))
    except Exception as fault:  # binaries for another Python or another machine raise what they like
        line = f"{type(fault).__name__}: {fault}".partition("\n")[0]
        return f"the package pomona-native cannot be imported ({line}): run make native"


def release() -> str:
    """Version of pomona-native and the kind of processor that it computes for; empty where it cannot be used."""
    package = native_package()
    return "" if isinstance(package, str) else f"{package.version} {package.kind}"
