"""The folder of figures: contains those of its page, and removes those of an earlier page."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

from pomona.core.bounds import parse
from pomona.core.errors import StorageError
from pomona.core.files import content
from pomona.results.figures.figure import FORMS, ReportFigure
from pomona.storage.atomic_io import anew, own

INDEX = "index.json"
"""List of files written by the report; no other files are ever deleted."""


def save(pictures: Sequence[ReportFigure], folder: Path, forms: Sequence[str] = FORMS) -> None:
    """Save all pictures in some formats, then delete files of earlier calls that were not written again.

    Raises:
        OSError: the folder cannot be created or written.
        StorageError: it is a link, so that files of another folder would be replaced.
    """
    own(folder.parent, folder.name).mkdir(parents=True, exist_ok=True)
    new = {f"{picture.name}.{form}": picture.title for picture in pictures for form in forms}
    old = listed(folder)
    # Both lists, until the old files are deleted: a kill in between leaves no unlisted file.
    _list(folder, dict.fromkeys(old, "") | new)
    for picture in pictures:
        picture.save(folder, forms)
    for name in old - new.keys():
        (folder / name).unlink(missing_ok=True)
    _list(folder, new)


def listed(folder: Path) -> set[str]:
    """Return the names of figure files in the list; anything else in it is ignored."""
    try:
        names = parse(content(folder / INDEX), StorageError)
    except (OSError, StorageError):
        return set()
    return (
        {n for n in names if re.fullmatch(rf"[a-z0-9-]+\.({'|'.join(FORMS)})", n)} if isinstance(names, dict) else set()
    )


def _list(folder: Path, names: dict[str, str]) -> None:
    text = json.dumps(names, indent=2, ensure_ascii=False) + "\n"
    anew(folder / INDEX).write_text(text, encoding="utf-8")
