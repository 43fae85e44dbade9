"""The silo of this process, set once before it forks for messages; no message can change it."""

from pathlib import Path

_KIT: Path | None = None


def use(kit: Path) -> None:
    """Make this process and its children the silo of a kit."""
    global _KIT  # noqa: PLW0603 - one a process, which its children have by the fork
    _KIT = kit


def own_kit() -> Path:
    """The kit of this process's silo."""
    assert _KIT, "the resident process has been told"
    return _KIT
