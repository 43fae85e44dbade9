"""Registries of lazily imported objects: listing them imports nothing, and unknown names get
suggestions.
"""

import inspect
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any

from pomona.core.bounds import plain
from pomona.core.errors import ConfigError, suggestion, with_extra, worded
from pomona.core.files import sha256

_barred = ContextVar("_barred", default=False)
# folders from which modules may be imported; on the import path only while one is loaded
_homes: list[str] = []
# use count of each folder that is on the path only for this reason
_loading: Counter[str] = Counter()
_lock = Lock()


@contextmanager
def own_code_barred(barred: bool = True) -> Iterator[None]:
    """Context in which ``own`` refuses, for settings that may come from somebody else."""
    token = _barred.set(barred)
    try:
        yield
    finally:
        _barred.reset(token)


def import_own_code(target: str) -> Any:
    """Import the user's object at ``module:attribute``, also from the own-code folders.

    Modules that it imports at its top level may lie there too; imports inside functions do not
    search those folders.

    Raises ConfigError if it does not exist, or within ``own_code_barred``.
    """
    if _barred.get():
        raise ConfigError(
            f"{plain(target, 80)} is own code, which runs only if you allow it: add --own-code"
        )
    with _own_code_in_reach():
        return load(target)


def require(package: str, feature: str) -> None:
    """Import a package that ``feature`` needs.

    Raises ConfigError if it is missing or incompatible.
    """
    if find_spec(package) is None:
        raise ConfigError(f"{feature} needs {package}; {with_extra(package)}")
    try:
        import_module(package)
    except Exception as fault:  # binaries for another PyTorch raise any type
        raise ConfigError(
            f"{feature} needs {package}, which cannot be imported ({worded(fault)}); install "
            f"torch, torchvision and {package} from one source: all for this machine's CPU, or "
            "all for its CUDA"
        ) from fault


def load(target: str) -> Any:
    """Import the object at ``module:attribute``. Raises ConfigError if it does not exist."""
    module, _, attribute = target.partition(":")
    try:
        return getattr(import_module(module), attribute)
    # TypeError: a relative module name
    except (ImportError, AttributeError, TypeError, ValueError) as fault:
        raise ConfigError(
            f"cannot load {target!r} ({fault}); give an importable module:attribute"
        ) from fault


def importable(folder: Path) -> None:
    """Add a folder from which ``module:attribute`` may be imported; same-named modules elsewhere
    take precedence.

    The folder is searched only for these names. It may contain other people's files, and a file
    with the name of a package that is not installed must not be run instead of it.
    """
    path = str(folder.absolute())
    if path not in _homes:
        _homes.append(path)


def own_code_folders() -> tuple[Path, ...]:
    """Return the own-code folders, for starting other processes."""
    return tuple(map(Path, _homes))


@contextmanager
def importing_from(folder: Path) -> Iterator[None]:
    """Apply ``importable`` within this context."""
    previous = list(_homes)
    importable(folder)
    try:
        yield
    finally:
        _homes[:] = previous


@contextmanager
def _own_code_in_reach() -> Iterator[None]:
    with _lock:
        added = [folder for folder in _homes if _loading[folder] or folder not in sys.path]
        sys.path.extend(folder for folder in added if not _loading[folder])
        _loading.update(added)
    try:
        yield
    finally:
        with _lock:
            _loading.subtract(added)
            for folder in added:
                if not _loading[folder] and folder in sys.path:
                    sys.path.remove(folder)


def code_sha256(target: str) -> str:
    """Return the SHA-256 in hex of the module file of ``module:attribute``, without the modules it
    imports.

    Raises ConfigError if the object does not exist, or its module has no file.
    """
    with _own_code_in_reach():
        load(target)
    try:
        return sha256(Path(inspect.getfile(sys.modules[target.partition(":")[0]])))
    except (OSError, TypeError) as fault:
        raise ConfigError(
            f"cannot read the code of {target!r} ({fault}); name a module that is a file"
        ) from None


class Registry(Mapping[str, str]):
    """A table of name -> ``module:attribute``; ``resolve`` also accepts the user's own entry
    points.
    """

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
        """Return the object with a registered name, for names from a file.

        Raises ConfigError for others.
        """
        if name not in self._targets:
            raise ConfigError(f"unknown {self.what} {name!r}; {suggestion(name, self._targets)}")
        return load(self._targets[name])

    def resolve(self, name: str) -> Any:
        """Return the object with a registered name or a ``module:attribute``.

        Raises ConfigError for anything else.
        """
        if ":" in name and name not in self._targets:
            return import_own_code(name)
        return self.registered(name)
