"""Names that were read in another encoding than they were written in."""

from collections.abc import Iterable, Iterator

from pomona.core.errors import listed
from pomona.data.cell_values import short
from pomona.data.dataset import Dataset

CODECS = ("cp1252", "latin-1", "mac-roman", "cp850")
REPLACEMENT = "\ufffd"


def notes(dataset: Dataset) -> list[str]:
    """Warn about classes, columns, clients, categories and words whose letters are damaged."""
    damaged_names = {
        source: matches
        for source, names in _names(dataset)
        if (matches := [name for name in dict.fromkeys(names) if damaged(name)])
    }
    if not damaged_names:
        return []
    phrases = "; ".join(
        f"{source} {listed([*map(short, matches)], 3)}" for source, matches in damaged_names.items()
    )
    repaired = next(
        (m for matches in damaged_names.values() for name in matches if (m := intended(name))), ""
    )
    hint = f" (one is {short(repaired)}?)" if repaired else ""
    return [
        f"letters damaged by an encoding: {phrases}{hint}; save the file as UTF-8, or set "
        "data.encoding to the encoding that it was written in"
    ]


def _names(dataset: Dataset) -> Iterator[tuple[str, Iterable[str]]]:
    yield "classes", dataset.classes
    yield "columns", (*dataset.columns, *dataset.others, *dataset.labels)
    yield "clients", dataset.owners.names if dataset.owners else ()
    yield "values of the subgroup column", dataset.subgroups.names if dataset.subgroups else ()
    if dataset.raw:
        for column, values in zip(dataset.raw.columns, dataset.raw.values, strict=True):
            yield f"column {column.name}", values
    yield "words", dataset.words


def damaged(name: str) -> bool:
    """Return whether a name has a replacement character, or letters that are bytes of UTF-8."""
    return not name.isascii() and (REPLACEMENT in name or bool(intended(name)))


def intended(name: str) -> str:
    """Return the name whose bytes of UTF-8 were read in another encoding; empty if there is none.

    Words of texts were put into lower case.
    """
    for spelling in dict.fromkeys((name, name.upper())):
        for codec in CODECS:
            try:
                repaired = spelling.encode(codec).decode("utf-8")
            except UnicodeError:
                continue
            if repaired != spelling:
                return repaired
    return ""
