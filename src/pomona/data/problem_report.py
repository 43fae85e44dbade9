"""Report all problems of data in one error: a line each, remedies below."""

from collections.abc import Sequence

from pomona.core.errors import DataError

MOST = 20  # lines of problems; a file that is wrong as a whole has as many as rows


def refuse(where: object, problems: Sequence[str], remedies: Sequence[str] = ()) -> None:
    """Raise one DataError with all problems and remedies; return if there are none.

    Lines on files below the folder ``where`` name them from there on.
    """
    if not problems:
        return
    lines = [problem.replace(f"{where}/", "") for problem in problems[:MOST]]
    if len(problems) == 1:
        raise DataError(f"{where}: {'; '.join([*lines, *remedies])}")
    more = [f"and {len(problems) - MOST} more"] if len(problems) > MOST else []
    raise DataError(f"{where} has {len(problems)} problems", *lines, *more, *remedies)


def listed(names: Sequence[str], most: int = 5) -> str:
    """Names in a row for a message, the first few of many."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
