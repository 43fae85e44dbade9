"""Names -> things, imported when asked for, so that a listing costs nothing and a typo gets near names."""

import inspect
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any

from pomona.core.bounds import plain
from pomona.core.errors import ConfigError, near
from pomona.core.files import sha256

_barred = ContextVar("_barred", default=False)
_homes: list[str] = []  # folders in which modules may be named; they are on the import path while one is loaded
_loading: Counter[str] = Counter()  # how many are, by the folder, where it is on the path for their sake alone
_lock = Lock()


@contextmanager
def own_code_barred(barred: bool = True) -> Iterator[None]:
    """Within this, ``own`` refuses: for settings that somebody else may have written."""
    token = _barred.set(barred)
    try:
        yield
    finally:
        _barred.reset(token)


def own(target: str) -> Any:
    """Import a user's own object, the ``module:attribute`` that a setting names, of the folders of own code too.

    What it imports in turn may lie there as well, where it does so at its top: later the folders are searched no more.

    Raises ConfigError if it does not exist, or within ``own_code_barred``.
    """
    if _barred.get():
        raise ConfigError(f"{plain(target, 80)} is own code, which runs only if you say so: give --own-code")
    with _own_code_in_reach():
        return load(target)


def load(target: str) -> Any:
    """Import the object at ``module:attribute``. Raises ConfigError if it does not exist."""
    module, _, attribute = target.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError, TypeError, ValueError) as fault:  # TypeError: a relative name
        raise ConfigError(f"cannot load {target!r} ({fault}); give an importable module:attribute") from fault


def importable(folder: Path) -> None:
    """Let ``module:attribute`` name a module that lies in a folder; modules of the same name elsewhere come first.

    The folder is searched for what is named so, and for nothing else: it may hold files of somebody else, and one that
    is called like a package which is not installed must not run in its place.
    """
    home = str(folder.absolute())
    if home not in _homes:
        _homes.append(home)


def own_code_folders() -> tuple[Path, ...]:
    """The folders in which modules may be named, for processes that others start."""
    return tuple(map(Path, _homes))


@contextmanager
def importing_from(folder: Path) -> Iterator[None]:
    """``importable`` within this."""
    before = list(_homes)
    importable(folder)
    try:
        yield
    finally:
        _homes[:] = before


@contextmanager
def _own_code_in_reach() -> Iterator[None]:
    with _lock:
        mine = [home for home in _homes if _loading[home] or home not in sys.path]
        sys.path.extend(home for home in mine if not _loading[home])
        _loading.update(mine)
    try:
        yield
    finally:
        with _lock:
            _loading.subtract(mine)
            for home in mine:
                if not _loading[home] and home in sys.path:
                    sys.path.remove(home)


def code_sha256(target: str) -> str:
    """SHA-256 in hex of the file of the module in ``module:attribute``, without the modules that it imports.

    Raises ConfigError if the object does not exist, or its module is no file.
    """
    with _own_code_in_reach():
        load(target)
    try:
        return sha256(Path(inspect.getfile(sys.modules[target.partition(":")[0]])))
    except (OSError, TypeError) as fault:
        raise ConfigError(f"cannot read the code of {target!r} ({fault}); name a module that is a file") from None


class Registry(Mapping[str, str]):
    """A table of name -> ``module:attribute``; ``resolve`` finds a name or an entry point of the user's own."""

    def __init__(self, what: str, targets: Mapping[str, str]) -> None:
        self.what = what
        self._targets = dict(targets)

    def __getitem__(self, name: str) -> str:
        return self._targets[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._targets)

    def __len__(self) -> int:
        return len(self._targets)

    def registered(self, name: str) -> Any:
        """The object behind a registered name: for names that came in a file. Raises ConfigError for anything else."""
        if name not in self._targets:
            raise ConfigError(f"unknown {self.what} {name!r}; {near(name, self._targets)}")
        return load(self._targets[name])

    def resolve(self, name: str) -> Any:
        """The object behind a registered name or a ``module:attribute``. Raises ConfigError for anything else."""
        return own(name) if ":" in name and name not in self._targets else self.registered(name)
