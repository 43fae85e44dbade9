"""The optional package pomona-native, built by ``make native``: availability and version."""

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from pomona.core.errors import worded

PACKAGE = "pomona_native"
INTERFACE = 2
"""Version of the package's interface used here; other builds have another number, old ones none."""


INSTALL = "pip install --upgrade pomona-native, or make native in a clone"


@dataclass(frozen=True)
class NativePackage:
    """The package for one kind of processor.

    Attributes:
        version: its version.
        processor: its kind.
        module: the module compiled for this kind, with ``Network``, ``mix`` and ``move``.
    """

    version: str
    processor: str
    module: Any

    @property
    def bf16(self) -> bool:
        """Whether the processor has an instruction for bf16 products; otherwise they are
        emulated.
        """
        return bool(self.module.BF16)


def native_package(processor: str = "") -> NativePackage | str:
    """Return the package for a kind of processor, the fastest if empty; or the reason why it cannot
    be used.
    """
    if find_spec(PACKAGE) is None:
        return f"the package pomona-native is not installed; {INSTALL}"
    try:
        package = import_module(PACKAGE)
        if (interface := getattr(package, "INTERFACE", 0)) != INTERFACE:
            return (
                f"the package pomona-native has interface {interface}, this Pomona calls "
                f"{INTERFACE}; {INSTALL}"
            )
        if not (processors := package.kinds()):
            return "this processor has neither AVX2 nor NEON"
        processor = processor or processors[0]
        return NativePackage(package.__version__, processor, package.load(processor))
    except Exception as fault:  # binaries for another Python or another machine raise any type
        return f"the package pomona-native cannot be imported ({worded(fault)}); {INSTALL}"


def release() -> str:
    """Return the version of pomona-native and its kind of processor; empty if it cannot be used."""
    package = native_package()
    return "" if isinstance(package, str) else f"{package.version} {package.processor}"
