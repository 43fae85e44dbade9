"""What the levels of folders above images mean: classes, sites, patients."""

import re
from collections import defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Literal

from pomona.core.errors import DataError, listed
from pomona.data.images import patients

Level = Literal["class", "site", "patient", "any"]
Levels = tuple[Level, ...]
FEW = 0.5  # share of a folder's names that others have too, below which they may be patients
FOLD = re.compile(r"(cv|fold|split|part|batch)[-_ ]?\d+", re.IGNORECASE)  # of one data set
PATIENT = re.compile(r"(sub|subj|subject|pat|patient|pt|case|p|id)[-_ ]?\d+|.*\d{3}.*", re.I)


def levels(root: Path, folders: Collection[tuple[str, ...]], classes: Sequence[str]) -> Levels:
    """Return the meaning of the levels of folders, from the folders of all images below ``root``.

    Folders inside others are patients of classes if their names look like identifiers, or differ
    between the outer ones; where all outer folders hold folders of the same other names, those are
    classes, and the outer ones are sites.

    Args:
        root: for messages.
        folders: the names of the folders that hold images, from the outermost.
        classes: their names, if known.

    Raises:
        DataError: several meanings are possible.
    """
    inner: dict[str, set[str]] = defaultdict(set)
    for names in folders:
        inner[names[0]] |= {*names[1:2]}
    if {*inner} <= {*classes}:
        return ("class", *_patients(folders, 1))
    if all(patients.subject(f"{name}/") for name in inner):
        raise DataError(
            f"{root}: folders {listed(sorted(inner), 3)} are subjects (BIDS), not classes; write a "
            "table with the columns path and label (of participants.tsv), and set data.path to it"
        )
    if all(len(names) > 1 for names in folders):
        every = set[str]().union(*inner.values())
        if every <= {*classes} or _are_classes(root, inner, every):
            return ("site", "class", *_patients(folders, 2))
    return ("class", *_patients(folders, 1))


def _are_classes(root: Path, inner: dict[str, set[str]], every: set[str]) -> bool:
    """Return whether folders in folders are classes. Raises DataError if unclear."""
    sets = list(inner.values())
    shared = {name for name in every if sum(name in names for names in sets) > 1}
    if len(every) < 2 or all(PATIENT.fullmatch(name) for name in every):
        return False
    if len(sets) > 1 and not all(map(FOLD.fullmatch, inner)):
        if all(len(names & shared) < FEW * len(names) for names in sets):
            return False
        numbered = all(sum(c.isdigit() for c in name) > 1 for name in every)
        if max(map(len, sets)) == len(shared) == len(every) and not numbered:
            return True  # all have the same names, or fewer of them
    raise DataError(
        f"{root}: folders {listed(sorted(inner), 3)} hold folders {listed(sorted(every), 4)}, of "
        f"which {len(shared)} are in several: set data.folders = "
        "['site', 'class'], ['class', 'patient'], or ['any', 'class'] (folds)"
    )


def _patients(folders: Collection[tuple[str, ...]], level: int) -> Levels:
    """Return the level of patients, if all images are in folders of it that have several names."""
    by_parent: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for names in folders:
        if len(names) <= level:
            return ()
        by_parent[names[:level]].add(names[level])
    several = any(len(names) > 1 for names in by_parent.values())
    different = len({frozenset(names) for names in by_parent.values()}) > 1
    return ("patient",) if several or different else ()
