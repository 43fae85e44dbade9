"""Commands of ``pomona``, run in the test's own process."""

from typing import Any

from pomona.cli import main


def command(*arguments: object) -> int:
    """A command's exit code."""
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def call(capsys: Any, *arguments: object) -> tuple[Any, ...]:
    """A command's exit code, standard output, and standard error."""
    return command(*arguments), *capsys.readouterr()
