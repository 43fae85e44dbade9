"""Which files are of one patient: by folder, DICOM header, or subject in the path (BIDS); and which
seem to be of one image, by their names.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path, PurePath

from pomona.core.errors import listed
from pomona.data import targets
from pomona.data.dataset import Owners, RowGroups
from pomona.data.formats import image_formats

# x_mask.png, x_mask_1.png and x-seg.nii.gz of an image x; labelsTr/ and ground_truth/, after "_"
MASK = re.compile(
    r"(.*)[-_. ](?:masks?|seg(?:mentations?)?(?:class|object)?|labels?(?:tr|ts)?|gt(?:fine)?"
    r"|ground_?truth|anno(?:tations?)?"
    r"|(?:\d[a-z]{2}_?)?manual)(?:[-_. ]?\d+)?",
    re.IGNORECASE,
)
# P01_2, 17-left, la_003_0000 and img5_rot90: one of several images of P01, 17, la_003 and img5
NUMBERED = re.compile(
    r"^(.*\d.*?)[-_ ](?:\d{1,4}|left|right|(?:slice|frame|view|patch|tile|aug|rot|[hv]?flip|crop)"
    # sequences, and what dcm2niix makes of one series
    r"[a-z]*_?\d*|[ceit]\d{1,5}|t[12][a-z_]*|flair|adc|dwi|ph|real|imaginary|(?:eq|tilt|roi)_?\d+)$",
    re.IGNORECASE,
)
FEWEST = 10  # names of several images: fewer may be years or cameras
SUBJECT = re.compile(r"(?:^|[/_])(sub-[A-Za-z0-9]+)(?=[/_.]|$)")


def subject(path: str) -> str:
    """Return the subject (``sub-01``) that a path names, as BIDS writes it; nothing if none."""
    match = SUBJECT.search(path)
    return match[1] if match else ""


def grouped(
    folders: Sequence[str],
    headers: Sequence[str],
    paths: Sequence[str],
    owners: Owners | None,
    n_train: int,
    classes: int,
) -> tuple[RowGroups | None, tuple[str, ...]]:
    """Return which rows are of one patient, and remarks; none if all are of different ones.

    Args:
        folders: the patient's folder of each row (n,), or nothing; may be empty.
        headers: PatientID of each row (n,), or FrameOfReferenceUID, or nothing.
        paths: of the files (n,) below the data's folder, with subjects as BIDS has them.
        owners: of the rows, if known: an identifier at two owners is two patients.
        n_train: number of rows that are not for testing.
        classes: number of classes and sites.
    """
    names, source = _names(folders, headers, paths)
    if len({*names} - {""}) == sum(map(bool, names)):
        return None, () if any(names) else _alike_by_name(paths, n_train, classes)
    client = [0] * len(names) if owners is None else owners.client.tolist()
    names, notes = _varying(names, client, source, owners)
    rows = [
        (k, name or f"row {row}") for row, (k, name) in enumerate(zip(client, names, strict=True))
    ]
    if len({*rows}) == len(rows):
        return None, tuple(notes)
    unnamed = names.count("")
    grouping = (
        f"{len(rows)} files are of {len({*rows})} patients by {source}"
        f"{f' ({unnamed} without)' if unnamed else ''}: the rows of a patient are kept together in "
        f"{'its owner and part' if owners else 'one part'}"
    )
    notes += [grouping, *_overlaps(rows, n_train)]
    return RowGroups("patient", targets.grouped([name for _, name in rows])), tuple(notes)


def _names(
    folders: Sequence[str], headers: Sequence[str], paths: Sequence[str]
) -> tuple[list[str], str]:
    """Return the patient of each row, or empty, and which sources name patients."""
    sources = {
        "the folder of each patient": folders,
        "the subject in the path (sub-...)": [subject(path) for path in paths],
        "PatientID (else FrameOfReferenceUID) of the header": headers,
    }
    used = {source: names for source, names in sources.items() if any(names)}
    names = [next(filter(None, row), "") for row in zip(*used.values(), strict=True)]
    return names, " or ".join(used)


def _overlaps(rows: Sequence[tuple[int, str]], n_train: int) -> list[str]:
    """Remark on patients of several clients, and on those with rows for training and for testing;
    ``rows``: the client and the patient of each.
    """
    notes = []
    of_clients = Counter(name for _, name in {*rows})
    if shared := sorted(name for name, count in of_clients.items() if count > 1):
        notes.append(
            f"{len(shared)} patients ({listed(shared, 3)}) appear at several clients: an "
            "identifier at two clients counts as two patients"
        )
    if repeated := sorted(name for _, name in {*rows[:n_train]} & {*rows[n_train:]}):
        notes.append(
            f"{len(repeated)} patients ({listed(repeated, 3)}) have rows for training and for "
            "testing, as the files say: results will look too good; keep each patient in one part"
        )
    return notes


def _varying(
    names: list[str], client: Sequence[int], source: str, owners: Owners | None
) -> tuple[list[str], list[str]]:
    """Return names without those of owners whose rows all have one name, and a remark on them."""
    by_client = defaultdict[int, list[str]](list)
    for number, name in zip(client, names, strict=True):
        by_client[number].append(name)
    constant = {k: n[0] for k, n in by_client.items() if len({*n}) == 1 < len(n) and n[0]}
    if not constant:
        return names, []
    clients = f" of {listed([owners.names[k] for k in sorted(constant)], 3)}" if owners else ""
    note = (
        f"all files{clients} have one patient by {source} ({constant[min(constant)]!r}), which is "
        "not used to keep patients together; name patients in a column group, or in folders"
    )
    return ["" if k in constant else n for k, n in zip(client, names, strict=True)], [note]


def _alike_by_name(paths: Sequence[str], n_train: int, classes: int) -> tuple[str, ...]:
    """Remark on images whose names differ only in what tells images of one patient apart (a short
    number, a side, or how a copy was changed), or whose folders have numbers; of either there are
    more than ``classes`` and sites.

    Where all names of a folder begin alike, that is the class, as in ImageNet.
    """
    files = [PurePath(path.removesuffix(".gz")) for path in paths]
    folders = [file.parent.name for file in files]
    by_path = sorted(files, key=str)
    # the last and the first of each folder: what both begin with, all do
    ends = [{file.parent: file.stem for file in way} for way in (by_path, by_path[::-1])]
    # without what tells images of one patient apart
    stems = [NUMBERED.sub(r"\1", file.stem) for file in files]
    patients = {
        stem
        for stem, file in zip(stems, files, strict=True)
        if stem != file.stem and not all(end[file.parent].startswith(stem) for end in ends)
    }
    numbered = {*filter(re.compile(r"\d").search, folders)}
    fewest = max(FEWEST, classes + 1)
    several = _several(stems, patients, n_train, fewest)
    return several or _several(folders, numbered, n_train, fewest)


def _several(
    names: Sequence[str], candidates: set[str], n_train: int, fewest: int
) -> tuple[str, ...]:
    """Remark on candidates that several rows (n,) have; of given parts, those in both of them."""
    counts = Counter(name for name in names if name in candidates)
    repeated = {name for name, count in counts.items() if count > 1}
    if n_train < len(names):
        repeated &= {*names[:n_train]} & {*names[n_train:]}
    if len(repeated) < fewest:
        return ()
    return (
        f"{sum(counts[name] for name in repeated)} images seem to be several of {len(repeated)} "
        f"patients, volumes or pictures, by their names ({listed(sorted(repeated), 3)}): if so, "
        "keep these together (a folder for each in its class, or a table with a column group), or "
        "results will look too good",
    )


def several_of_one(root: Path, paths: Sequence[Path]) -> Iterator[str]:
    """Remark on images that are named like masks of others, in their folder or in one next to it;
    and on those that have the name of another but for the suffix.
    """
    stems = {path: Path(path.name.removesuffix(".gz")).stem for path in paths}
    if masks := [path.relative_to(root).as_posix() for path in _masks(stems)]:
        yield (
            f"{len(masks)} images are named like masks of others ({listed(masks, 3)}), but read as "
            "images: to read them as masks, set data.path to a table with the columns path and mask"
        )
    counts = Counter((p.parent, name) for p, name in stems.items() if image_formats.by_suffix(p))
    if doubles := [name for (_, name), count in counts.items() if count > 1]:
        yield (
            f"{len(doubles)} images have a second file with another suffix ({listed(doubles, 3)}); "
            "if both show the same, keep one"
        )


def _masks(stems: Mapping[Path, str]) -> Iterator[Path]:
    """Yield the files that are named like masks of others; ``stems``: names without suffixes."""
    masks, images = list[tuple[Path, str, int]](), set[tuple[Path, str]]()
    for path, stem in stems.items():
        names = (stem, f"_{path.parent.name}", f"_{path.parent.parent.name}")
        matches = [*map(MASK.fullmatch, names)]
        if any(matches):  # masks/x is of a neighbour, masks/a/x of images/a/x
            name = matches[0][1] if matches[0] else stem
            masks.append((path, name, 2 if any(matches[:2]) else 3))
        else:  # x_mask may also be of x_t1 and x_t2
            images |= {*product(path.parents[:3], (stem, stem.rpartition("_")[0]))}
    for path, name, depth in masks:
        if images & {(folder, name) for folder in path.parents[:depth]}:
            yield path
