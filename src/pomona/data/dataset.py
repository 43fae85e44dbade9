"""A checked data set: inputs and targets, training rows first."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pomona.core.bounds import Targets
from pomona.data.preprocessing import Preprocessing, RawTable
from pomona.data.tokenizer import Tokenizer

InputKind = Literal["image", "table", "text"]


class Learn(Protocol):
    """Returns the data with what it learns from training rows."""

    def __call__(
        self,
        dataset: "Dataset",
        rows: NDArray[np.int64],
        training: NDArray[np.int64] | None = None,
        /,
    ) -> "Dataset":
        """Learn from ``rows``, those of the clients of round 1.

        ``training``: the training rows of all clients, from which each may learn for itself; by
        default ``rows``.
        """
        ...


SampleType = Literal["uint8", "uint16", "int16", "float32", "int32"]


class InputForm(NamedTuple):
    """Allowed forms of inputs x: dtypes, the default first, and numbers of axes of a sample, with
    their names.
    """

    dtypes: tuple[SampleType, ...]
    ranks: tuple[int, ...]
    axes: str


INPUT_FORMS: dict[InputKind, InputForm] = {
    "image": InputForm(
        ("uint8", "uint16", "int16", "float32"), (3, 4), "(N, H, W, C) or (N, D, H, W, C)"
    ),
    "table": InputForm(("float32",), (1,), "(N, F)"),
    "text": InputForm(("int32",), (1,), "(N, T)"),
}


def network_shape(kind: InputKind, sample: Sequence[int]) -> tuple[int, ...]:
    """Return a sample's shape as a network receives it: channels first for images."""
    return (sample[-1], *sample[:-1]) if kind == "image" else tuple(sample)


@dataclass(frozen=True)
class Owners:
    """A partition that comes with the data: the owner and split of each row.

    ``client`` (N,) int64 is the owner of each row; ``role`` (N,) int8 is 0 train, 1 validation, 2
    test.
    """

    names: tuple[str, ...]
    client: NDArray[np.int64]
    role: NDArray[np.int8]


class Subgroups(NamedTuple):
    """A column for results by subgroup: its name, its values, and each row's value index (N,)
    int64.

    The model sees it only if it is also a column of x.
    """

    column: str
    names: tuple[str, ...]
    number: NDArray[np.int64]


class RowGroups(NamedTuple):
    """Rows that belong together (e.g. of one patient): the name for a group, and each row's group
    (N,) int64.
    """

    column: str
    number: NDArray[np.int64]

    def within(self, owner: NDArray[np.int64] | None) -> NDArray[np.int64]:
        """Return groups (N,) that are separate for each owner (N,): an identifier at two hospitals
        is two patients.

        Those of an owner are in the order of their first rows, as if its rows were read alone.
        """
        if owner is None:
            return self.number
        pairs, first, inverse = np.unique(
            np.stack([owner, self.number]), axis=1, return_index=True, return_inverse=True
        )
        rank: NDArray[np.int64] = np.argsort(np.lexsort((first, pairs[0])))
        return rank[inverse.ravel()]


@dataclass(frozen=True)
class Dataset:
    """A data set in memory (or memory-mapped): rows [0, n_train) for training, the rest for
    testing.

    Attributes:
        name: registered name, or path it was read from.
        kind: ``image`` x (N, H, W, C), or volumes (N, D, H, W, C), of uint8, uint16, int16 or
            finite float32; ``table`` x (N, F) float32; ``text`` x (N, T) int32 tokens, 0 = padding.
        x: the inputs.
        y: (N,) int64 class numbers; masks ``(N, *S)`` uint8, the class number of each pixel of
            images ``(N, *S, C)``; or (N, K) float32 targets when ``classes`` is empty.
        classes: class names in the order of their numbers, of masks the background first; empty for
            multi-label and regression targets.
        n_train: number of official training rows; equal to N if the source has no test split.
        shift, scale: the model sees ``(x - shift) / scale``, broadcast over the last axis (not used
            for text).
        vocabulary: number of tokens including padding (text only).
        words: the words with numbers 2, 3, ... (text only, where known); 0 is padding, 1 any other
            word.
        tokenizer: what made the tokens, if not the words of the texts.
        owners: the natural partition, if the source has one.
        columns: names of x's columns in order (a table), or of those joined to a text, if known.
        others: the source's other columns: label, client, and dropped columns.
        raw: the cells from which x is built (a table with gaps, categories or dates), until
            ``learn`` is called.
        preprocessing: how x is built from them: one for all, or one per owner.
        target_shift, target_scale: regression targets (K,) are trained as
            ``(y - target_shift) / target_scale``; outputs are converted back to the units of y.
        labels: names of the K targets of y; empty for class numbers, or if unnamed.
        edges: for times to an event (``target_kind`` survival), ends of the K intervals that the
            network predicts, ascending; y is then (N, 2), the times and whether the event was
            observed.
        target_kind: type of the targets; default: classes if there are class names, else
            multi-label if all targets are 0 or 1, else numbers.
        subgroups: the column for results by subgroup, if set.
        groups: rows that belong together, if known; see ``RowGroups.within`` for rows with owners.
        times: (N,) float64 time of measurement, by which rows are split, if known.
        spacings: voxel sizes (z, y, x) in mm of volumes in files, the most frequent first.
        orientation: the ends to which x, y and z of volumes grow (``RAS``), if their files say how
            they lie in the patient.
        traits: what the headers of its images say, by the names of ``file_notes.traits``, the most
            frequent first.
        notes: the reader's remarks, e.g. on skipped content, one line each, for display.
        learn: returns the data with statistics (column moments, a vocabulary) learned only from the
            given rows, once a partition has selected the training rows of round 1's clients; None
            if nothing is learned.
    """

    name: str
    kind: InputKind
    x: NDArray[np.generic]
    y: NDArray[np.generic]
    classes: tuple[str, ...]
    n_train: int
    shift: tuple[float, ...] = (0.0,)
    scale: tuple[float, ...] = (1.0,)
    vocabulary: int = 0
    words: tuple[str, ...] = field(default=(), repr=False)
    tokenizer: Tokenizer | None = field(default=None, repr=False)
    owners: Owners | None = field(default=None, repr=False)
    columns: tuple[str, ...] = field(default=(), repr=False)
    others: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=(), repr=False)
    learn: Learn | None = field(default=None, repr=False)
    target_shift: tuple[float, ...] = (0.0,)
    target_scale: tuple[float, ...] = (1.0,)
    target_kind: Targets | None = None
    raw: RawTable | None = field(default=None, repr=False)
    preprocessing: tuple[Preprocessing, ...] = field(default=(), repr=False)
    subgroups: Subgroups | None = field(default=None, repr=False)
    groups: RowGroups | None = field(default=None, repr=False)
    times: NDArray[np.float64] | None = field(default=None, repr=False)
    edges: tuple[float, ...] = ()
    spacings: tuple[tuple[float, float, float], ...] = ()
    orientation: str = ""
    traits: Mapping[str, tuple[str, ...]] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.y)

    @cached_property
    def targets(self) -> Targets:
        """The type of the targets."""
        if self.target_kind or self.classes:
            return self.target_kind or "classes"
        return "multilabel" if bool(np.isin(self.y, (0, 1)).all()) else "regression"

    @property
    def n_outputs(self) -> int:
        """The width of a model's output: the number of classes, time intervals or targets."""
        return len(self.classes) or len(self.edges) or int(self.y.shape[1])

    def with_owners(
        self,
        names: tuple[str, ...],
        client: Sequence[int],
        role: Sequence[int],
        counts: Sequence[int],
    ) -> "Dataset":
        """Return the data with owners, of parts with ``counts`` rows that have one client and one
        role each; training and validation rows are first.
        """
        clients = np.repeat(np.array(client, np.int64), counts)
        roles = np.repeat(np.array(role, np.int8), counts)
        n_train = int((roles < 2).sum())
        return replace(self, n_train=n_train, owners=Owners(names, clients, roles))

    @cached_property
    def fingerprint(self) -> str:
        """A platform-independent SHA-256 over the dtypes, shapes and bytes of x and y, and the
        owners.
        """
        digest = hashlib.sha256()
        for array in (self.x, self.y):
            digest.update(f"{array.dtype.str}{array.shape}".encode())
            for start in range(0, len(array), 4096):
                digest.update(np.ascontiguousarray(array[start : start + 4096]).data)
        if self.owners is not None:
            digest.update("\0".join(self.owners.names).encode())
            digest.update(np.ascontiguousarray(self.owners.client).data)
            digest.update(np.ascontiguousarray(self.owners.role).data)
        return digest.hexdigest()
