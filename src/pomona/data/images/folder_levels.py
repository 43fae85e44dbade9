"""What the levels of folders above images mean: classes, sites, patients."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Literal

from pomona.core.errors import DataError, listed
from pomona.data.images import patients

Level = Literal["class", "site", "patient", "any"]
Levels = tuple[Level, ...]
FEW = 0.5  # share of a folder's names that others have too, below which they may be patients


def levels(root: Path, folders: Collection[tuple[str, ...]], classes: Sequence[str]) -> Levels:
    """Return the meaning of the levels of folders, from the folders of all images below ``root``.

    Where all folders hold folders of the same names, the outer ones are sites. Folders of different
    names inside classes, or inside the classes of sites, are patients.

    Args:
        root: for messages.
        folders: the names of the folders that hold images, from the outermost.
        classes: their names, if known.

    Raises:
        DataError: several meanings are possible.
    """
    outer = {names[0] for names in folders if names}
    inner: dict[str, set[str]] = defaultdict(set)
    for names in folders:
        if len(names) > 1:
            inner[names[0]].add(names[1])
    if outer and all(patients.subject(f"{name}/") for name in outer) and not outer <= {*classes}:
        raise DataError(
            f"{root}: folders {listed(sorted(outer), 3)} are subjects (BIDS), not classes; write a "
            "table with the columns path and label (of participants.tsv), and set data.path to it"
        )
    deep = len(inner) == len(outer) and all(len(names) > 1 for names in folders)
    if outer <= {*classes} or not deep:
        return ("class", *_patients(folders, 1, deep))
    if {name for names in inner.values() for name in names} <= {*classes} or _sites(root, inner):
        return ("site", "class", *_patients(folders, 2, all(len(names) > 2 for names in folders)))
    return ("class", *_patients(folders, 1, deep))


def _sites(root: Path, inner: dict[str, set[str]]) -> bool:
    """Return whether folders of these inner folders are sites. Raises DataError if unclear."""
    sets = list(inner.values())
    every = set.union(*sets)
    shared = {name for name in every if sum(name in names for names in sets) > 1}
    if len(every) < 2 or (not shared and len(sets) > 1):
        return False
    if len(sets) > 1 and max(map(len, sets)) == len(shared) == len(every) and not _numbered(every):
        return True  # all have the same names, or fewer of them
    if len(sets) > 1 and all(len(names & shared) < FEW * len(names) for names in sets):
        return False
    raise DataError(
        f"{root}: folders {listed(sorted(inner), 3)} hold folders {listed(sorted(every), 4)}, of "
        f"which {len(shared)} are in several: set data.folders = "
        "['site', 'class'], or ['class', 'patient']"
    )


def _numbered(names: Collection[str]) -> bool:
    """Return whether all names look like identifiers of patients: with a number of two digits."""
    return all(sum(c.isdigit() for c in name) > 1 for name in names)


def _patients(folders: Collection[tuple[str, ...]], level: int, deep: bool) -> Levels:
    """Return the level of patients, if all images are in folders of it that have several names."""
    by_parent: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for names in folders:
        if len(names) > level:
            by_parent[names[:level]].add(names[level])
    several = any(len(names) > 1 for names in by_parent.values())
    different = len({frozenset(names) for names in by_parent.values()}) > 1
    return ("patient",) if deep and (several or different) else ()
