"""Which files are of one patient: by folder, DICOM header, or subject in the path (BIDS)."""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import listed
from pomona.data import targets
from pomona.data.dataset import Owners, RowGroups

SUBJECT = re.compile(r"(?:^|[/_])(sub-[A-Za-z0-9]+)(?=[/_.]|$)")


def subject(path: str) -> str:
    """Return the subject (``sub-01``) that a path names, as BIDS writes it; nothing if none."""
    found = SUBJECT.search(path)
    return found[1] if found else ""


def grouped(
    folders: Sequence[str],
    headers: Sequence[str],
    paths: Sequence[str],
    owners: Owners | None,
    n_train: int,
) -> tuple[RowGroups | None, tuple[str, ...]]:
    """Return which rows are of one patient, and remarks; none if all are of different ones.

    Args:
        folders: the patient's folder of each row (n,), or nothing; may be empty.
        headers: PatientID of each row (n,), or nothing.
        paths: of the files (n,) below the data's folder, with subjects as BIDS has them.
        owners: of the rows, if known: an identifier at two owners is two patients.
        n_train: number of rows that are not for testing.
    """
    sources = {
        "the folder of each patient": folders,
        "the subject in the path (sub-...)": [subject(path) for path in paths],
        "PatientID of the header": headers,
    }
    used = {source: each for source, each in sources.items() if any(each)}
    names = [next(filter(None, each), "") for each in zip(*used.values(), strict=True)]
    if len({*names} - {""}) < sum(map(bool, names)):
        owner = np.zeros(len(paths), np.int64) if owners is None else owners.client
        return _by_names(" or ".join(used), names, owner, owners, n_train)
    return None, ()


def _by_names(
    source: str,
    names: list[str],
    owner: NDArray[np.int64],
    owners: Owners | None,
    n_train: int,
) -> tuple[RowGroups | None, tuple[str, ...]]:
    """Group rows by name; an owner whose rows have all one name has no patients by it."""
    by_owner: defaultdict[int, set[str]] = defaultdict(set)
    counts = Counter(map(int, owner))
    for number, name in zip(owner, names, strict=True):
        by_owner[int(number)].add(name)
    constant = {n for n, ids in by_owner.items() if len(ids) == 1 and counts[n] > 1 and ids != {""}}
    notes = []
    if constant:
        where = [owners.names[n] for n in sorted(constant)] if owners else []
        example = next(iter(by_owner[min(constant)]))
        notes.append(
            f"all files{f' of {listed(where, 3)}' if where else ''} have one patient by {source} "
            f"({example!r}), which is not used to keep patients together; name patients in a "
            "column group, or in folders"
        )
    ids = [
        f"row {k}" if not name or int(n) in constant else name
        for k, (name, n) in enumerate(zip(names, owner, strict=True))
    ]
    pairs = [f"{n}:{name}" for n, name in zip(owner, ids, strict=True)]
    if len({*pairs}) == len(pairs):
        return None, tuple(notes)
    real = [pair for pair, name in zip(pairs, names, strict=True) if name]
    rows_word = "its owner and part" if owners else "one part"
    notes.append(
        f"{len(pairs)} files are of {len({*pairs})} patients by {source}"
        f"{'' if len(real) == len(pairs) else f' ({len(pairs) - len(real)} without)'}: the rows of "
        f"a patient are kept together in {rows_word}"
    )
    notes += _shared(ids, by_owner, constant, owners)
    both = {*pairs[:n_train]} & {*pairs[n_train:]}
    if both:
        shared = sorted(pair.partition(":")[2] for pair in both)
        notes.append(
            f"{len(both)} patients ({listed(shared, 3)}) have rows for training and for testing, "
            "as the files say: results are too good; put each patient into one part"
        )
    return RowGroups("patient", targets.grouped(ids)), tuple(notes)


def _shared(
    ids: Sequence[str],
    by_owner: dict[int, set[str]],
    constant: set[int],
    owners: Owners | None,
) -> list[str]:
    """Remark on identifiers that several owners have."""
    times = Counter(name for n, names in by_owner.items() if n not in constant for name in names)
    shared = sorted(name for name, count in times.items() if count > 1 and name in {*ids})
    if owners is None or not shared:
        return []
    return [
        f"{len(shared)} patients ({listed(shared, 3)}) are named at several clients: an identifier "
        "at two clients is taken for two patients"
    ]
