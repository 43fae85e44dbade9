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
REQUEST_FILE = "wanted.json"  # in the folder state/
READERS = {"table", "text", "arrays"}
SUFFIXES = {".npz", *(suffix for suffix, name in formats().items() if name == CSV)}
# seconds that a file must have been unchanged: two writes may have the same time stamp
SETTLED = 2.0
MEGABYTE = 10**6

Stamps = tuple[tuple[str, int, int, int, int, int], ...]


class DataRequest(Settings):
    """The note of the last message's process: the silo's data, in the agreed form."""

    data: Data
    task: TaskSettings

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that it is read from; empty if anything else may be read, or executed."""
        paths = tuple(expanded(path) for path in files(self.data))
        supported = (
            bool(paths)
            and self.data.name in READERS
            and all(p.suffix.lower() in SUFFIXES and p.is_file() for p in paths)
        )
        return paths if supported else ()


def stamps(paths: tuple[Path, ...]) -> Stamps:
    """Path, device, inode, size, and change times of content and inode for each file.

    Raises OSError.
    """
    stats = ((str(path), path.stat()) for path in paths)
    return tuple(
        (name, s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for name, s in stats
    )


def size(value: Any) -> int:
    """Bytes of the in-memory arrays in a record."""
    if isinstance(value, np.ndarray):
        return 0 if isinstance(value, np.memmap) else value.nbytes
    if is_dataclass(value) and not isinstance(value, type):
        return sum(size(getattr(value, field.name)) for field in fields(value))
    return sum(map(size, value)) if isinstance(value, tuple) else 0


@dataclass
class DataCache:
    """Keeps the data of a silo's kit.

    Attributes:
        folder: the kit.
        cached: the data, and the stamps of the files that it was read from; None if nothing is
            kept.
    """

    folder: Path
    cached: tuple[DataRequest, Stamps, Dataset] | None = None
    _request_stamps: Stamps = ()  # of the note and silo.toml
    _request: DataRequest | None = None
    _file_stamps: Stamps = ()  # of the files, at the last read

    @property
    def _request_path(self) -> Path:
        return self.folder / "state" / REQUEST_FILE

    def lookup(self, request: DataRequest) -> Dataset | None:
        """The kept data for this note, if still valid."""
        with suppress(OSError):
            if (
                self.cached
                and self.cached[0] == request
                and stamps(request.files) == self.cached[1]
            ):
                return self.cached[2]
        return None

    def post(self, request: DataRequest) -> None:
        """Leave the note for the worker."""
        with suppress(OSError, PomonaError):  # without the note the data is read again next time
            if request.files and request != self._read_request():
                write_json(self._request_path, request)

    def _read_request(self) -> DataRequest | None:
        """What the note says; None without one, and for one that this release cannot read."""
        with suppress(PomonaError):
            return read_json(DataRequest, self._request_path)
        return None

    def refresh(self) -> bool:
        """Read the wanted data if note, files or ``silo.toml`` have changed.

        Returns whether anything was read.
        """
        try:
            return self._refresh()
        except Exception:  # errors are reported by the process of the message that needs the data
            self.cached = None
            return True

    def _refresh(self) -> bool:
        if not self._request_path.exists():
            return False
        settings = self.folder / "silo.toml"
        if (request_stamps := stamps((settings, self._request_path))) != self._request_stamps:
            self._request = self._read_request()
            self._request_stamps, self._file_stamps = request_stamps, ()
        if not self._request:
            self.cached = None
            return False
        if (file_stamps := stamps(self._request.files)) == self._file_stamps:
            return False
        self.cached = None
        if not _are_settled(file_stamps):
            return False
        self._file_stamps = file_stamps
        limit = SiloFile.load(settings).keep_data_mb * MEGABYTE
        if sum(stamp[3] for stamp in file_stamps) > limit:
            return False
        dataset = agreed_data(self._request.data, self._request.task)
        if size(dataset) <= limit and stamps(self._request.files) == file_stamps:
            self.cached = self._request, file_stamps, dataset
        return True


def _are_settled(file_stamps: Stamps) -> bool:
    """Whether there are files, and none has changed lately."""
    changes = [max(stamp[4:]) for stamp in file_stamps]
    return bool(changes) and max(changes) / 1e9 <= time.time() - SETTLED


_CACHE: DataCache | None = None


def use(cache: DataCache | None) -> None:
    """Make this process and its children use a keeper's data; None for no keeper."""
    global _CACHE  # noqa: PLW0603 - one a process, which its children have by the fork
    _CACHE = cache


def own_data(settings: DataSettings, task: TaskSettings) -> Dataset:
    """The data named by settings, in the agreed form: the kept copy if still valid, else read now.

    Raises DataError or ConfigError.
    """
    if not _CACHE:
        return agreed_data(settings, task)
    request = DataRequest(data=settings, task=task)
    if (cached := _CACHE.lookup(request)) is not None:
        logger.info("the worker holds the data")
        return cached
    dataset = agreed_data(settings, task)
    _CACHE.post(request)
    return dataset


def conformed(raw: Dataset, task: TaskSettings) -> Dataset:
    """The data with the task's label map, preprocessing and vocabulary.

    Raises DataError if it does not fit.
    """
    dataset = _with_columns(raw, task)
    if dataset.kind == "text":
        return _with_vocabulary(dataset, task)
    return replace(dataset, shift=task.shift, scale=task.scale, raw=None, learn=None)


def _with_columns(raw: Dataset, task: TaskSettings) -> Dataset:
    """The data with the task's columns and type.

    Raises DataError for another form than the task's.
    """
    targets = raw.target_kind or task.targets
    _require_agreed("targets", targets, task.targets, "set data.targets")
    table = raw
    if task.preprocessing and raw.kind == "table":
        table = tabular.with_agreed_features(raw, task.preprocessing)
    dataset = replace(
        table, target_shift=task.target_shift, target_scale=task.target_scale, edges=task.time_edges
    )
    _require_agreed("kind of data", dataset.kind, task.kind, "look at section data")
    shape = tuple(dataset.x.shape[1:])
    _require_agreed("shape of a sample", shape, task.input_shape, "bring the data into that shape")
    dataset = replace(dataset, x=image_arrays.as_type(dataset.x, task.dtype, "the data"))
    remedy = "set data.classes to these in this order, or rename labels"
    _require_agreed("classes", dataset.classes, task.classes, remedy)
    remedy = "bring the targets into that form"
    _require_agreed("targets of a sample", dataset.n_outputs, task.outputs, remedy)
    return dataset


def _require_agreed(title: str, value: object, expected: object, remedy: str) -> None:
    """Raise DataError for a value that differs from the agreement's."""
    if value != expected:
        raise DataError(
            f"{title}: {value or 'none'} here, the agreement says {expected or 'none'}; {remedy}"
        )


def _with_vocabulary(dataset: Dataset, task: TaskSettings) -> Dataset:
    """Texts with the task's numbers for words, or its tokenizer's."""
    tokenizer = dataset.tokenizer.sha256 if dataset.tokenizer else None
    if tokenizer != task.tokenizer:
        raise DataError(
            f"the tokenizer is {tokenizer or 'none'}, the agreement says "
            f"{task.tokenizer or 'none'} (SHA-256 of a tokenizer.json); set data.tokenizer"
        )
    numbers = {token: number for number, token in enumerate(task.words, start=2)}
    lookup = np.array([0, 1, *(numbers.get(token, 1) for token in dataset.words)], np.int32)
    # tokens without words are numbers already
    x = lookup[dataset.x] if dataset.words else dataset.x
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
    preprocessing = task.preprocessing
    resolved = tabular.settings_as_agreed(settings, preprocessing) if preprocessing else settings
    if (
        task.classes
        and isinstance(resolved, ColumnData)
        and not resolved.classes
        and resolved.label_column is not None
    ):
        resolved = resolved.model_copy(update={"classes": task.classes})
    return conformed(
        read(resolved, keep_raw=preprocessing is not None and tabular.needs_raw(preprocessing)),
        task,
    )
