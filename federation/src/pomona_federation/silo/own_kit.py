"""Which silo a process is: it is told once, before it forks for messages, and no message says another."""

from pathlib import Path

_KIT: Path | None = None


def use(kit: Path) -> None:
    """Have this process and its children be the silo of a kit from now on."""
    global _KIT  # noqa: PLW0603 - one a process, which its children have by the fork
    _KIT = kit


def own_kit() -> Path:
    """The kit of this process's silo."""
    assert _KIT, "the resident process has been told"
    return _KIT
