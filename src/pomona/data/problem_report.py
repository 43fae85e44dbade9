"""Reporting of all data problems in one error: one line each, remedies below."""

from collections.abc import Sequence

from pomona.core.errors import DataError

MOST = 20  # maximum lines of problems; a file can have one for each row


def refuse(where: object, problems: Sequence[str], remedies: Sequence[str] = ()) -> None:
    """Raise one DataError with all problems and remedies; return if there are none.

    File paths below the folder ``where`` are shown relative to it.
    """
    if not problems:
        return
    lines = [problem.replace(f"{where}/", "") for problem in problems[:MOST]]
    if len(problems) == 1:
        raise DataError(f"{where}: {'; '.join([*lines, *remedies])}")
    more = [f"and {len(problems) - MOST} more"] if len(problems) > MOST else []
    raise DataError(f"{where} has {len(problems)} problems", *lines, *more, *remedies)


def listed(names: Sequence[str], most: int = 5) -> str:
    """Join names for a message, truncated after the first few."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
