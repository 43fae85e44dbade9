"""Names that were read in another encoding than they were written in."""

from collections.abc import Iterable, Iterator

from pomona.core.errors import listed
from pomona.data.cell_values import short
from pomona.data.dataset import Dataset

CODECS = ("cp1252", "latin-1", "mac-roman", "cp850")
REPLACEMENT = "\ufffd"


def notes(dataset: Dataset) -> list[str]:
    """Warn about classes, columns, clients, categories and words whose letters are damaged."""
    found = {
        what: odd
        for what, names in _names(dataset)
        if (odd := [name for name in dict.fromkeys(names) if damaged(name)])
    }
    if not found:
        return []
    said = "; ".join(f"{what} {listed([*map(short, odd)], 3)}" for what, odd in found.items())
    meant = next((m for odd in found.values() for name in odd if (m := intended(name))), "")
    hint = f" (one is {short(meant)}?)" if meant else ""
    return [
        f"letters damaged by an encoding: {said}{hint}; save the file as UTF-8, or set "
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
    for form in dict.fromkeys((name, name.upper())):
        for codec in CODECS:
            try:
                meant = form.encode(codec).decode("utf-8")
            except UnicodeError:
                continue
            if meant != form:
                return meant
    return ""
