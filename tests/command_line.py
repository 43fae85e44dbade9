"""Commands of ``pomona``, run in the test's own process."""

from typing import Any

from pomona.cli import main


def command(*words: object) -> int:
    """A command's exit code."""
    try:
        main([str(word) for word in words])
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def call(capsys: Any, *words: object) -> tuple[Any, ...]:
    """A command's exit code, standard output, and standard error."""
    return command(*words), *capsys.readouterr()
