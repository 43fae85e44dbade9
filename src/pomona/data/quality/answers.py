"""Words and codes that clients write in their own ways, and letters that an encoding damaged."""

import re
from collections.abc import Iterator, Sequence

import numpy as np

from pomona.core.errors import listed
from pomona.data.cell_values import quoted
from pomona.data.dataset import Dataset
from pomona.data.quality.cells import Cells, Rows, digits, without_gaps

CODECS = ("cp1252", "latin-1", "mac-roman", "cp850")
REPLACEMENT = "\ufffd"
ANSWERS = (
    {"0", "no", "n", "false", "f", "nein", "non", "neg", "negative", "negativ", "absent"},
    {"1", "yes", "y", "true", "t", "ja", "oui", "pos", "positive", "positiv", "present"},
)
LETTERS = ({"f", "n"}, {"t", "y"})  # which stand for two things where both occur
MAX_CODES = 10  # categories of a column that may be codes
ENOUGH_ROWS = 20  # rows of a client that show all of its codes
_MONTH = r"(?:jan|feb|m[aä]r|mrz|apr|ma[iy]|jun|jul|aug|sep|o[ck]t|nov|de[cz])"
_DATE = re.compile(rf"\d{{4}}-\d\d-\d\d.*|\d{{1,2}}[-. ]+{_MONTH}\.?|{_MONTH}-\d\d", re.IGNORECASE)
SHARED = "if they are the same answers, write them the same way at all clients"


def damaged_letters(cells: Cells) -> list[str]:
    """Warn about classes, columns, clients, categories and words whose letters are damaged."""
    damaged = {
        source: names
        for source, all_names in _names(cells.dataset)
        if (names := [name for name in dict.fromkeys(all_names) if is_damaged(name)])
    }
    if not damaged:
        return []
    phrases = "; ".join(
        f"{key} {listed([*map(quoted, names)], 3)}" for key, names in damaged.items()
    )
    repaired = next(
        filter(None, (intended(name) for names in damaged.values() for name in names)), ""
    )
    hint = f" (one is {quoted(repaired)}?)" if repaired else ""
    return [
        f"letters damaged by an encoding: {phrases}{hint}; save the file as UTF-8, or set "
        "data.encoding to the encoding that it was written in"
    ]


def dates_among_names(cells: Cells) -> Iterator[str]:
    """Warn if some names are dates: spreadsheets make them of SEPT2 (a gene) or 5-9."""
    for source, names in _names(cells.dataset):
        dates = [name for name in names if _DATE.fullmatch(name)]
        if source not in {"columns", "words"} and 0 < len(dates) < len(names):
            yield (
                f"{source}: dates among other names ({listed(dates, 4)}): if a spreadsheet made "
                "them of SEPT2, 5-9 or the like, write these into cells of texts"
            )


def _names(dataset: Dataset) -> Iterator[tuple[str, Sequence[str]]]:
    """Iterate over all names and words of a data set, with their source."""
    yield "classes", dataset.classes
    yield "columns", (*dataset.columns, *dataset.others, *dataset.labels)
    yield "clients", dataset.owners.names if dataset.owners else ()
    yield "values of the subgroup column", dataset.subgroups.names if dataset.subgroups else ()
    yield "words", dataset.words
    if dataset.raw:
        for column, values in zip(dataset.raw.columns, dataset.raw.values, strict=True):
            yield f"column {column.name}", values


def is_damaged(name: str) -> bool:
    """Return whether a name has a replacement character, or letters that are bytes of UTF-8."""
    return not name.isascii() and (REPLACEMENT in name or bool(intended(name)))


def intended(name: str) -> str:
    """Return the name whose bytes of UTF-8 were read in another encoding; empty if there is none.

    Words of texts were put into lower case.
    """
    for spelling in (name, name.upper()):
        for codec in CODECS:
            try:
                repaired = spelling.encode(codec).decode("utf-8")
            except UnicodeError:
                continue
            if repaired != spelling:
                return repaired
    return ""


def shared_groups(cells: Cells) -> list[str]:
    """Warn if a group identifier occurs at several clients."""
    groups = cells.dataset.groups
    if groups is None or len(cells.names) < 2:
        return []
    pairs: Rows = np.unique(np.stack([groups.number, cells.client]), axis=1)
    count = int((np.unique(pairs[0], return_counts=True)[1] > 1).sum())
    line = (
        f"{groups.column}: values at several clients, which count as different patients: {count}; "
        "if they are the same people, some may be in training at one and in test at another"
    )
    return [line] if count else []


def classes(cells: Cells) -> list[str]:
    """Warn about classes that clients do not share, or that are two spellings of one answer."""
    dataset = cells.dataset
    if dataset.targets != "classes":
        return []
    y = np.asarray(dataset.y, np.int64)
    sets = [[dataset.classes[c] for c in np.unique(y[rows])] for rows in cells.by_client]
    present = [dataset.classes[c] for c in np.unique(y)]
    lines = _disjoint("classes", cells.names, sets) or _shifted("classes", cells.names, sets)
    return lines or _one_answer("classes", present)


def _one_answer(subject: str, names: Sequence[str]) -> list[str]:
    """Warn about names that are spellings of one answer."""
    spellings = [[n for n in names if n.strip().casefold() in answers] for answers in ANSWERS]
    return [
        f"{subject} that may be one answer: {listed(same)}; if so, write them the same way"
        for same in spellings
        if len(folded := {*map(str.casefold, same)}) > 1 and folded not in LETTERS
    ]


def categories(cells: Cells) -> list[str]:
    """Warn about categories of a feature that groups of clients do not share, or that are two
    spellings of one answer.
    """
    lines = []
    for k, name in cells.columns("category"):
        values = cells.raw.values[k]
        if len(values) <= MAX_CODES * cells.sites:
            codes = [np.unique(without_gaps(cells.raw.x[rows, k])) for rows in cells.by_client]
            sets = [sorted(values[int(code)] for code in present) for present in codes]
            if max(map(len, sets)) <= MAX_CODES:
                subject = f"column {name}: categories"
                lines += (
                    _disjoint(subject, cells.names, sets)
                    or _shifted(subject, cells.names, sets)
                    or _one_answer(subject, values)
                )
    return lines


def codes(cells: Cells) -> list[str]:
    """Warn about columns that have two whole numbers at each client, but not the same two."""
    _, low, high = cells.extremes
    lines = []
    for k, name in cells.columns("number") if cells.names else ():
        sites: dict[tuple[float, ...], str] = {}
        for site, sample in zip(cells.names, cells.samples, strict=True):
            values = without_gaps(sample[:, k])
            if len(values) >= ENOUGH_ROWS:
                sites.setdefault(tuple(np.unique(values).tolist()), site)
        pairs = {values: site for values, site in sites.items() if len(values) == 2}
        if len(pairs) < 2 or max(map(len, sites)) > 2:
            continue
        extremes = np.fmin.reduce(low[:, k]), np.fmax.reduce(high[:, k])
        if extremes == (min(map(min, pairs)), max(map(max, pairs))):
            phrases = [f"{', '.join(map(digits, pair))} at {site}" for pair, site in pairs.items()]
            lines.append(
                f"column {name}: two values at each client, but not the same: "
                f"{'; '.join(phrases[:4])}; {SHARED}"
            )
    return lines


def _shifted(subject: str, clients: Sequence[str], sets: Sequence[Sequence[str]]) -> list[str]:
    """Warn if clients have two codes each, such as 0 and 1, or 1 and 2, that overlap."""
    pairs = {tuple(names): client for client, names in zip(clients, sets, strict=False)}
    pairs = {names: client for names, client in pairs.items() if len(names) > 1}
    numeric = all(name.removeprefix("-").isdecimal() for names in pairs for name in names)
    if len(pairs) != 2 or not numeric or max(map(len, pairs)) > 2:
        return []
    phrases = [f"{', '.join(names)} at {client}" for names, client in pairs.items()]
    return [f"{subject}: two at each client, but not the same: {'; '.join(phrases)}; {SHARED}"]


def _disjoint(subject: str, clients: Sequence[str], sets: Sequence[Sequence[str]]) -> list[str]:
    """Warn if there are clients with several names each that share none, also by way of others."""
    groups: list[tuple[set[str], int]] = []  # names, and the client that has most of them
    for client, names in enumerate(sets):
        overlapping = [group for group in groups if group[0] & {*names}]
        largest = max([client, *(i for _, i in overlapping)], key=lambda i: len(sets[i]))
        groups = [group for group in groups if group not in overlapping]
        groups.append(({*names}.union(*(group for group, _ in overlapping)), largest))
    examples = sorted(i for _, i in groups if len(sets[i]) > 1)
    if len(examples) < 2:
        return []
    phrases = [f"{', '.join(sets[i][:4])} at {clients[i]}" for i in examples]
    return [f"{subject} that no two of these clients share: {'; '.join(phrases[:4])}; {SHARED}"]
