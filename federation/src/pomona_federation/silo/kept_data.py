"""A silo's data in the agreed form, read once in its worker and inherited by its forks.

The process of a message that finds no kept data reads it, and leaves a note of what it has read.
The worker acts on the note between messages, and keeps the data while the note and the files
(inode, size and times) stay the same. It keeps only what Pomona's own readers of CSV and NPZ files
return, which start no threads and run no custom code.
"""

import logging
import time
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pomona.core.errors import DataError, PomonaError
from pomona.core.files import expanded
from pomona.core.settings import Settings
from pomona.data import read
from pomona.data.axes import ColumnData, files
from pomona.data.dataset import Dataset
from pomona.data.formats import CSV, formats
from pomona.data.images import image_arrays
from pomona.data.section import Data
from pomona.data.settings import DataSettings
from pomona.data.tables import tabular
from pomona_federation.json_store import read_json, write_json
from pomona_federation.silo.settings import SiloFile
from pomona_federation.task_settings import TaskSettings

logger = logging.getLogger("pomona")
WANTED = "wanted.json"  # in the folder state/
READERS = {"table", "text", "arrays"}
SUFFIXES = {".npz", *(suffix for suffix, form in formats().items() if form == CSV)}
SETTLED = (
    2.0  # seconds that a file must have been unchanged: two writes may have the same time stamp
)
MEGABYTE = 10**6

Stamps = tuple[tuple[str, int, int, int, int, int], ...]


class WantedData(Settings):
    """The note of the last message's process: the silo's data, in the agreed form."""

    data: Data
    task: TaskSettings

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that it is read from; empty if anything else may be read, or executed."""
        paths = tuple(expanded(path) for path in files(self.data))
        own = (
            bool(paths)
            and self.data.name in READERS
            and all(p.suffix.lower() in SUFFIXES and p.is_file() for p in paths)
        )
        return paths if own else ()


def stamps(paths: tuple[Path, ...]) -> Stamps:
    """Path, device, inode, size, and change times of content and inode for each file.

    Raises OSError.
    """
    found = ((str(path), path.stat()) for path in paths)
    return tuple(
        (name, s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for name, s in found
    )


def size(value: Any) -> int:
    """Bytes of the in-memory arrays in a record."""
    if isinstance(value, np.ndarray):
        return 0 if isinstance(value, np.memmap) else value.nbytes
    if is_dataclass(value) and not isinstance(value, type):
        return sum(size(getattr(value, field.name)) for field in fields(value))
    return sum(map(size, value)) if isinstance(value, tuple) else 0


@dataclass
class DataKeeper:
    """Keeps the data of a silo's kit.

    Attributes:
        folder: the kit.
        kept: the data, and the stamps of the files that it was read from; None if there is nothing
            to keep.
    """

    folder: Path
    kept: tuple[WantedData, Stamps, Dataset] | None = None
    _told: Stamps = ()  # of the note and silo.toml
    _wanted: WantedData | None = None
    _tried: Stamps = ()  # of the files, at the last read

    @property
    def _note(self) -> Path:
        return self.folder / "state" / WANTED

    def find(self, wanted: WantedData) -> Dataset | None:
        """The kept data for this note, if still valid."""
        with suppress(OSError):
            if self.kept and self.kept[0] == wanted and stamps(wanted.files) == self.kept[1]:
                return self.kept[2]
        return None

    def want(self, wanted: WantedData) -> None:
        """Leave the note for the worker."""
        with suppress(OSError, PomonaError):  # without the note the data is read again next time
            if wanted.files and wanted != self._noted():
                write_json(self._note, wanted)

    def _noted(self) -> WantedData | None:
        """What the note says; None without one, and for one that this release cannot read."""
        with suppress(PomonaError):
            return read_json(WantedData, self._note)
        return None

    def refresh(self) -> bool:
        """Read the wanted data if note, files or ``silo.toml`` have changed.

        Returns whether anything was read.
        """
        try:
            return self._refresh()
        except Exception:  # errors are reported by the process of the message that needs the data
            self.kept = None
            return True

    def _refresh(self) -> bool:
        if not self._note.exists():
            return False
        settings = self.folder / "silo.toml"
        if (told := stamps((settings, self._note))) != self._told:
            self._told, self._wanted, self._tried = told, self._noted(), ()
        if not self._wanted:
            self.kept = None
            return False
        if (now := stamps(self._wanted.files)) == self._tried:
            return False
        self.kept = None
        if not now or max(max(stamp[4:]) for stamp in now) / 1e9 > time.time() - SETTLED:
            return False
        self._tried = now
        most = SiloFile.load(settings).keep_data_mb * MEGABYTE
        if sum(stamp[3] for stamp in now) > most:
            return False
        dataset = agreed_data(self._wanted.data, self._wanted.task)
        if size(dataset) <= most and stamps(self._wanted.files) == now:
            self.kept = self._wanted, now, dataset
        return True


_KEEPER: DataKeeper | None = None


def use(keeper: DataKeeper | None) -> None:
    """Make this process and its children use a keeper's data; None for no keeper."""
    global _KEEPER  # noqa: PLW0603 - one a process, which its children have by the fork
    _KEEPER = keeper


def own_data(settings: DataSettings, task: TaskSettings) -> Dataset:
    """The data named by settings, in the agreed form: the kept copy if still valid, else read now.

    Raises DataError or ConfigError.
    """
    if not _KEEPER:
        return agreed_data(settings, task)
    wanted = WantedData(data=settings, task=task)
    if (kept := _KEEPER.find(wanted)) is not None:
        logger.info("the worker holds the data")
        return kept
    dataset = agreed_data(settings, task)
    _KEEPER.want(wanted)
    return dataset


def conformed(found: Dataset, task: TaskSettings) -> Dataset:
    """The data with the task's label map, preprocessing and vocabulary.

    Raises DataError if it does not fit.
    """
    dataset = _in_form(found, task)
    if dataset.kind == "text":
        return _in_agreed_words(dataset, task)
    return replace(dataset, shift=task.shift, scale=task.scale, raw=None, learn=None)


def _in_form(found: Dataset, task: TaskSettings) -> Dataset:
    """The data with the task's columns and type.

    Raises DataError for another form than the task's.
    """
    known = found.target_kind or task.targets
    if known != task.targets:
        raise DataError(
            f"the targets are {known}, the agreement says {task.targets}; set data.targets"
        )
    table = (
        tabular.with_agreed_features(found, task.preprocessing)
        if task.preprocessing and found.kind == "table"
        else found
    )
    dataset = replace(
        table, target_shift=task.target_shift, target_scale=task.target_scale, edges=task.time_edges
    )
    if dataset.kind != task.kind:
        raise DataError(
            f"the data is of kind {dataset.kind}, the agreement says {task.kind}; look at section "
            "data"
        )
    if (shape := tuple(dataset.x.shape[1:])) != task.input_shape:
        raise DataError(
            f"a sample has shape {shape}, the agreement says {task.input_shape}; bring the data "
            "into that shape"
        )
    dataset = replace(dataset, x=image_arrays.as_type(dataset.x, task.dtype, "the data"))
    if dataset.classes != task.classes:
        raise DataError(
            f"the classes are {', '.join(dataset.classes) or 'none'}, the agreement has, in this "
            "order, "
            f"{', '.join(task.classes) or 'none'}; set data.classes to these, or rename labels"
        )
    if dataset.n_outputs != task.outputs:
        raise DataError(
            f"a sample has {dataset.n_outputs} targets, the agreement says {task.outputs}; bring "
            "them into that form"
        )
    return dataset


def _in_agreed_words(dataset: Dataset, task: TaskSettings) -> Dataset:
    """Texts with the task's numbers for words, or its tokenizer's."""
    own = dataset.tokenizer.sha256 if dataset.tokenizer else None
    if own != task.tokenizer:
        raise DataError(
            f"the tokenizer is {own or 'none'}, the agreement says {task.tokenizer or 'none'} "
            "(SHA-256 of a tokenizer.json); set data.tokenizer"
        )
    numbers = {word: number for number, word in enumerate(task.words, start=2)}
    spoken = np.array([0, 1, *(numbers.get(word, 1) for word in dataset.words)], np.int32)
    # tokens without words are numbers already
    x = spoken[dataset.x] if dataset.words else dataset.x
    if x.size and int(x.max()) >= task.vocabulary:
        raise DataError(
            f"the data has token {int(x.max())}, the agreement says {task.vocabulary} tokens; "
            "encode it again"
        )
    return replace(dataset, x=x, vocabulary=task.vocabulary, words=task.words)


def agreed_data(settings: DataSettings, task: TaskSettings) -> Dataset:
    """The data named by settings, in the agreed form. Raises DataError or ConfigError.

    A label column takes its classes from the agreement if the settings name none: a silo may lack
    some.
    """
    by = task.preprocessing
    own = tabular.settings_as_agreed(settings, by) if by else settings
    if (
        task.classes
        and isinstance(own, ColumnData)
        and not own.classes
        and own.label_column is not None
    ):
        own = own.model_copy(update={"classes": task.classes})
    return conformed(read(own, keep_raw=by is not None and tabular.needs_raw(by)), task)
