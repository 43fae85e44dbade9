"""A silo's own settings, ``silo.toml``. They never leave the silo."""

import re
from collections.abc import Iterable
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from pomona.core.bounds import NameOrNone, Sha256
from pomona.core.errors import ConfigError
from pomona.core.files import reading, sha256
from pomona.core.settings import Settings
from pomona.core.toml import expand_names, named_file, read_file, validated
from pomona.data.axes import ImageList, files
from pomona.data.section import CHOICES, Data
from pomona.data.settings import DataSettings, FilesByClient
from pomona_federation.address import Address
from pomona_federation.agreement import SiloName
from pomona_federation.study import StudyKind, StudyName

PATHS = ("path", "dir", "train", "validation", "test", "proxy_password_file")
# megabits a second: eight concurrent pieces of 5 MiB, each within the gate's limit of 300 s
SLOWEST = 2.0


def proxy_address(url: str) -> Address:
    """The address in a proxy's URL, with its scheme's default port. Raises ValueError."""
    scheme, mark, netloc = url.removesuffix("/").partition("://")
    default_ports = {"http": 80, "https": 443}
    if not mark or scheme not in default_ports or "@" in netloc:
        raise ValueError(
            "give http://HOST:PORT; name and password go into proxy_user and proxy_password_file"
        )
    return Address.parse(
        f"{netloc}:{default_ports[scheme]}" if re.fullmatch(r"[^:]+|\[.*\]", netloc) else netloc
    )


def _proxy(url: str) -> str:
    if url:
        proxy_address(url)
    return url


ProxyUrl = Annotated[str, AfterValidator(_proxy)]


class StudyLimits(Settings):
    """Limits of consent for studies of some kinds, on some views, in place of the file's own.

    Attributes:
        kinds: kinds of studies for which it counts; any if empty
        views: views for which it counts, "" for [data]; any if empty
        accept_epsilon: in place of the file's, which counts if unset
        accept_epsilon_total: likewise
        accept_delta_total: likewise
        without_noise: whether such studies may be without noise: they count as without bound on
            their data, so that a total limit refuses all later ones there
    """

    kinds: tuple[StudyKind, ...] = Field((), max_length=20)
    views: tuple[NameOrNone, ...] = Field((), max_length=1000)
    accept_epsilon: float | None = Field(None, gt=0)
    accept_epsilon_total: float | None = Field(None, gt=0)
    accept_delta_total: float | None = Field(None, gt=0, lt=1)
    without_noise: bool = False

    @model_validator(mode="after")
    def _require_content(self) -> Self:
        if not (self.kinds or self.views):
            raise ValueError("limits for no kind and no view; name kinds, views or both")
        if not (self.without_noise or self.changed):
            raise ValueError("limits that change nothing; set a limit, or without_noise")
        return self

    @property
    def changed(self) -> dict[str, float]:
        """The limits that it sets, by key."""
        limits = {key: getattr(self, key) for key in PRIVACY}
        return {key: value for key, value in limits.items() if value is not None}

    @property
    def worded(self) -> str:
        """What it says, for the silo's administrator."""
        limits = [f"{key} = {value:g}" for key, value in self.changed.items()]
        allowed = ["without noise too"] if self.without_noise else []
        return f"[[limits]] of silo.toml for it: {', '.join([*limits, *allowed])}"

    def count_for(self, study_kind: StudyKind, view: str) -> bool:
        """Whether it counts for a study of this kind on this view, "" for section data."""
        return study_kind in (self.kinds or (study_kind,)) and view in (self.views or (view,))


PRIVACY = ("accept_epsilon", "accept_epsilon_total", "accept_delta_total")


class SiloFile(Settings):
    """A silo's own settings: its data, its device, its route to the server.

    Attributes:
        name: the silo's name in the federation
        device: cpu, cuda, or one GPU: cuda:1
        threads: threads of PyTorch; models are equal to the bit only with 1
        keep_data_mb: data that the silo keeps in memory between messages (CSV, NPZ); 0 for none
        proxy: proxy on the way to the server, http://HOST:PORT; none if empty
        proxy_user: user name for the proxy
        proxy_password_file: file with the proxy's password, mode 0600
        max_upload_mb: a round that would send more is refused
        max_download_mb: a task that brings more is refused
        max_upload_mbit_s: limit of megabits a second to the server
        max_download_mbit_s: limit of megabits a second from the server
        accept_epsilon: largest epsilon of one study; if set, studies without noise are refused
        accept_epsilon_total: largest epsilon of all studies on the same data together; if set,
            studies without noise are refused
        accept_delta_total: largest sum of their deltas; 1 / n if accept_epsilon_total is set
        limits: limits for studies of some kinds or views, [[limits]]; the first that counts for a
            study replaces the three above
        data: the silo's data, as section data of a run
        views: further data of the silo by name, for studies that ask for them
        code: own code, as module:name, that a study may run here
    """

    name: SiloName
    device: str = Field("cpu", pattern=r"^(cpu|cuda(:[0-9]+)?)$")
    threads: int = Field(1, ge=1, le=1024)
    keep_data_mb: int = Field(256, ge=0, le=2**20)
    proxy: ProxyUrl = ""
    proxy_user: str = Field("", pattern=r"^[^:\s]*$", max_length=200)
    proxy_password_file: Path | None = None
    max_upload_mb: float | None = Field(None, gt=0)
    max_download_mb: float | None = Field(None, gt=0)
    max_upload_mbit_s: float | None = Field(None, ge=SLOWEST)
    max_download_mbit_s: float | None = Field(None, ge=SLOWEST)
    accept_epsilon: float | None = Field(None, gt=0)
    accept_epsilon_total: float | None = Field(None, gt=0)
    accept_delta_total: float | None = Field(None, gt=0, lt=1)
    limits: tuple[StudyLimits, ...] = Field((), max_length=100)
    data: Data
    views: dict[StudyName, Data] = Field({}, max_length=1000)
    code: tuple[str, ...] = Field((), max_length=1000)

    @model_validator(mode="after")
    def _require_single_client(self) -> Self:
        for name, data in {
            "data": self.data,
            **{f"views.{name}": view for name, view in self.views.items()},
        }.items():
            if isinstance(data, FilesByClient) and len(data.clients) > 1:
                raise ValueError(f"{name}.clients names {len(data.clients)} clients; a silo is one")
        if bool(self.proxy_user) != bool(self.proxy_password_file) or (
            self.proxy_user and not self.proxy
        ):
            raise ValueError(
                "proxy_user and proxy_password_file go together, and with proxy; name all three"
            )
        return self

    def viewed(self, view: str) -> "SiloFile":
        """The settings with a view's data in place of section data; "" for section data itself.

        Raises ConfigError.
        """
        if not view:
            return self
        if view not in self.views:
            raise ConfigError(
                f"silo.toml has no [views.{view}], which the study asks for; describe the data "
                "there"
            )
        return self.model_copy(update={"data": self.views[view]})

    def limits_of(self, study_kind: StudyKind, view: str) -> StudyLimits | None:
        """The limits that count for a study in place of the file's own; None without any."""
        return next((limits for limits in self.limits if limits.count_for(study_kind, view)), None)

    def limited(self, study_kind: StudyKind, view: str, noise: bool) -> "SiloFile":
        """The settings with the limits for a study; ``noise``: whether it has any."""
        if not (limits := self.limits_of(study_kind, view)):
            return self
        lifted = limits.without_noise and not noise
        return self.model_copy(update=dict.fromkeys(PRIVACY) if lifted else limits.changed)

    @classmethod
    def load(cls, path: Path) -> "SiloFile":
        """Read and check a ``silo.toml``; paths in it are relative to its folder.

        Raises ConfigError naming the file and every bad key or value.
        """
        tree = expand_names(read_file(path, "write it, or name the silo's kit with --folder"))
        with named_file(path):
            return validated(cls, _anchored(tree, path.parent), CHOICES)


def _anchored(data: Any, folder: Path) -> Any:
    """Settings with absolute paths."""
    if isinstance(data, list):
        return [_anchored(item, folder) for item in data]
    if not isinstance(data, dict):
        return data
    base = folder.absolute()
    return {
        key: str(base / value)
        if key in PATHS and isinstance(value, str)
        else _anchored(value, folder)
        for key, value in data.items()
    }


_KIT: Path | None = None


def use_kit(kit: Path) -> None:
    """Make this process and its children the silo of a kit; no message can change it."""
    global _KIT  # noqa: PLW0603 - one a process, which its children have by the fork
    _KIT = kit


def own_kit() -> Path:
    """The kit of this process's silo."""
    assert _KIT, "the worker knows its kit"
    return _KIT


MOST_SOURCES = 10_000  # most sources of one data set, over all names that its files have had


class DataSource(Settings):
    """A file or a folder by its real path, else a data set or a reader by its name.

    ``sha256`` is the file's content hash when recorded; "" for everything else.
    """

    place: Annotated[str, Field(min_length=1, max_length=2**14)]
    sha256: Sha256 | Literal[""] = ""

    def shares(self, source: "DataSource") -> bool:
        """Whether both may hold the same samples: equal paths or files, or one folder containing
        the other.
        """
        if self.sha256 and self.sha256 == source.sha256:
            return True
        path, other_path = PurePath(self.place), PurePath(source.place)
        return path == other_path or path in other_path.parents or other_path in path.parents


def sources(data: DataSettings) -> tuple[DataSource, ...]:
    """The sources that settings name: files and folders, else the data set; custom reader code
    always counts.

    A list of images brings its folder, in which all of them are: two lists may name the same.
    """
    data_files = files(data)
    folders = [path.parent for path in data_files] if isinstance(data, ImageList) else []
    paths = [str(path.resolve()) for path in (*data_files, *folders)]
    names = [data.name] if ":" in data.name or not paths else []
    return tuple(DataSource(place=location) for location in dict.fromkeys([*paths, *names]))


def hashed(sources: Iterable[DataSource]) -> tuple[DataSource, ...]:
    """The same sources with the hash of each plain file, by which it is recognised under another
    name.

    Raises StorageError for a file that cannot be read.
    """
    return tuple(
        DataSource(place=source.place, sha256=_sha256(Path(source.place))) for source in sources
    )


def shared(recorded: Iterable[DataSource], current: Iterable[DataSource]) -> bool:
    """Whether any source in ``recorded`` shares samples with any in ``current``."""
    candidates = list(current)
    return any(a.shares(b) for a in recorded for b in candidates)


def with_names(
    recorded: Iterable[DataSource], current: Iterable[DataSource]
) -> tuple[DataSource, ...]:
    """Recorded sources, plus the paths and contents under which the silo's data now hold the same
    files.

    So a moved file is known by its new path before it grows.
    """
    sources = tuple(recorded)
    locations = {source.place for source in sources}
    contents = {source.sha256 for source in sources if source.sha256}
    same = [s for s in current if s.place in locations or s.sha256 in contents]
    return tuple(dict.fromkeys([*sources, *same]))


def _sha256(path: Path) -> str:
    if not path.is_absolute() or not path.is_file():
        return ""
    with reading(path, "fix its permissions"):
        return sha256(path)
