"""Settings of section ``data``: those of all data, and groups of others, of which ``axes`` composes
each source's; those of tables are in ``table_settings``.
"""

from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pomona.core.bounds import LARGEST, Finite, Targets
from pomona.core.settings import Settings

DEFAULT = "digits"
Edge = Annotated[float, Field(gt=0, le=LARGEST)]


class DataSettings(Settings):
    """Every kind of data; subclasses are groups of settings that some kinds have.

    The first line of a group's docstring is its heading in the reference.

    Attributes:
        name: A data set of `pomona data list`; for your own, table, text, images or arrays
            (by default what the path, clients or repository hold), or module:function.
        split: Keep the source's training and test parts, or pool them and split again.
        test_share: Share of the rows for testing, if pooled or if the source has no test
            part.
        validation_share: Share of each client's training rows held out for validation.
        train_limit: At most this many training rows, a seeded draw.
        test_limit: At most this many test rows, a seeded draw.
        duplicates: Rows that repeat others, inputs and label: kept, with a note on those
            that are suspicious; left out, so that each is there once (the first, training
            before validation before test); or an error.
        memory_share: Arrays larger than this share of the machine's memory are kept on
            disk.
    """

    name: str
    split: Literal["official", "pooled"] = "official"
    test_share: float = Field(0.2, gt=0, lt=1)
    validation_share: float = Field(0.15, ge=0, lt=1)
    train_limit: int | None = Field(None, ge=1, lt=2**53)
    test_limit: int | None = Field(None, ge=1, lt=2**53)
    duplicates: Literal["keep", "drop", "error"] = "keep"
    memory_share: float = Field(0.25, gt=0, le=1)


class Normalisation(Settings):
    """Normalisation for each channel of images, or one for all: the network receives ``(x - shift)
    / scale``.

    Attributes:
        shift: Numbers that are subtracted.
        scale: Numbers that are divided by.
    """

    shift: tuple[Finite, ...] = Field(min_length=1, max_length=10**4)
    scale: tuple[Annotated[Finite, Field(gt=0)], ...] = Field(min_length=1, max_length=10**4)


class ClientFiles(Settings):
    """Files of one client; splits without a file are taken from its training rows.

    Attributes:
        name: Name of the client.
        train: Training rows: .npz, or a table of any format; book.xlsx#North is the sheet North of
            a workbook.
        validation: Its own validation rows.
        test: Its own test rows.
    """

    name: str = Field(min_length=1)
    train: Path
    validation: Path | None = None
    test: Path | None = None


class DataFolder(DataSettings):
    """Folder of data sets.

    Attributes:
        dir: Folder of the data sets; the environment variable POMONA_DATA if unset.
    """

    dir: Path | None = None


class OwnPath(DataSettings):
    """File or folder.

    Attributes:
        path: The file or the folder to read.
    """

    path: Path | None = None


class HubFiles(DataSettings):
    """Repository of the Hugging Face Hub.

    Attributes:
        repository: OWNER/NAME of the data set.
        revision: Commit of the repository, 40 hexadecimal digits, in the Hub's cache on
            this machine: nothing is fetched.
        subset: Folder of the repository with the files, where several have some.
        train_part: Word in the paths of the training files.
        test_part: Word in the paths of the test files; without such files, or if empty, the
            training rows are split.
    """

    repository: str = Field("", max_length=200)
    revision: str = Field("", max_length=200)
    subset: str = Field("", max_length=200)
    train_part: str = Field("train", max_length=80)
    test_part: str = Field("test", max_length=80)


class FilesByClient(DataSettings):
    """Files by client.

    Attributes:
        clients: Files of each client.
    """

    clients: tuple[ClientFiles, ...] = ()


class Images(DataSettings):
    """Images.

    Attributes:
        resize: Side in pixels to which images are resized (bilinear, antialiased).
        normalise: The network sees (x - shift) / scale. 'training': mean 0 and deviation 1
            per channel over the training rows; 'default': the same above 8 bits, -1 to 1
            for 8 bits, or as your own reader sets it; or {shift = [...], scale = [...]}. A
            federation's agreement sets it.
    """

    resize: int | None = Field(None, ge=1, le=10**4)
    normalise: Literal["default", "training"] | Normalisation = "default"


class ImageFiles(DataSettings):
    """Image files.

    Attributes:
        window: [centre, width]: files above 8 bits, or with a unit, are read as 0 to 255 from
            centre - width / 2 to centre + width / 2; unchanged if unset.
        skip_bad: Unreadable image files are skipped, counted and named; otherwise they are
            errors.
    """

    window: tuple[Finite, Annotated[Finite, Field(gt=0)]] | None = None
    skip_bad: bool = False


class ImageFolders(ImageFiles):
    """Image folders.

    Attributes:
        folders: Meaning of the levels of folders, below train/ and test/: class, and site
            (a client), patient or any. If empty, detected: folders that all contain folders
            of the same names are sites.
    """

    folders: tuple[Literal["class", "site", "patient", "any"], ...] = Field((), max_length=20)


class ClassNames(DataSettings):
    """Class names.

    Attributes:
        classes: Class names in the order of their numbers, taken from the data if empty;
            for multilabel and regression, names of the K targets.
    """

    classes: tuple[str, ...] = ()


class TargetKind(ClassNames):
    """Targets.

    Attributes:
        targets: Kind of label: class numbers, numbers, flags of 0 and 1, masks with a class
            number per pixel (segmentation), or times with 1 for an event and 0 for censored
            (survival).
    """

    targets: Targets = "classes"


class EventTimes(TargetKind):
    """Times to an event.

    Attributes:
        intervals: survival: largest number of time intervals, which end at quantiles of the
            training event times.
        time_edges: survival: ends of the intervals, ascending, instead of quantiles.
    """

    intervals: int = Field(10, ge=1, le=1000)
    time_edges: Annotated[tuple[Edge, ...], Field(max_length=1000)] = ()

    def idle(self) -> dict[str, str]:
        """Intervals of time are for survival, and their number follows from their ends."""
        keys = () if self.targets == "survival" else ("intervals", "time_edges")
        counted = {"intervals": "time_edges has the intervals"} if self.time_edges else {}
        return super().idle() | counted | dict.fromkeys(keys, "only for targets = survival")

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        if any(b <= a for a, b in pairwise(self.time_edges)):
            raise ValueError("time_edges must ascend: each interval ends after the one before")
        return self
