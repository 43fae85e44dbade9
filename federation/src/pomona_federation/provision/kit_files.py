"""Files of a kit: those except keys, rendered from ``templates/`` as path -> content; and writing
them.

They are written once, readable only by their owner, complete or not at all.
"""

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import tomli_w
from jinja2 import Environment, PackageLoader, StrictUndefined

from pomona.core.errors import ConfigError, StorageError
from pomona.core.files import MAX_LOG_BYTES, content, reading, sha256, sync
from pomona_federation import keys
from pomona_federation.address import Address
from pomona_federation.agreement import PROTOCOL, Federation
from pomona_federation.flower_internals import PIN
from pomona_federation.task_settings import TaskSettings

EXECUTABLE = "start.sh"


def write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write new files, by their paths in a folder. Raises StorageError if one exists."""
    for name, data in files.items():
        path = folder / name
        folders(path.parent)
        keys.write(path, data, 0o700 if path.name == EXECUTABLE else 0o600)


def folders(path: Path) -> None:
    """Create a folder and its parents, all private to their owner; ``Path.mkdir`` would open the
    parents to others.
    """
    if not path.is_dir():
        folders(path.parent)
        path.mkdir(mode=0o700)


@contextmanager
def appearing(folder: Path) -> Iterator[Path]:
    """A temporary folder to fill, renamed to ``folder`` on success and removed on failure.

    Raises StorageError.
    """
    temporary, target = None, folder.absolute()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        yield temporary
        temporary.rename(target)
        sync(target.parent)
    except OSError as fault:
        raise StorageError(
            f"{folder}: cannot be written ({fault.strerror}); choose another place"
        ) from None
    finally:
        if temporary:
            # after the rename nothing with that name is left
            shutil.rmtree(temporary, ignore_errors=True)


Files = dict[str, bytes]
Role = Literal["server", "silo"]

INSTALL_ROOT = "/var/lib/pomona"  # where the units expect the kits
# the only folder of a kit that is written to
STATE: dict[Role, str] = {"server": "run", "silo": "state"}
# exit codes that a restart cannot fix, or that are intended
LASTING = (2, 3, 4, 8, 9, 10, 130, 143)
FINAL: dict[Role, tuple[int, ...]] = {"server": (0, 1, *LASTING), "silo": LASTING}
UNPRIVILEGED = 1024  # lower ports need a capability

_TEMPLATES = Environment(
    loader=PackageLoader("pomona_federation.provision", "templates"),
    undefined=StrictUndefined,
    autoescape=False,  # noqa: S701 - no HTML; names are letters, digits and hyphens
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)


def server(
    federation: Federation, expiry: datetime | None, installed: Mapping[str, bytes]
) -> Files:
    """The server's kit without keys, wheels and ``federation.toml``; its certificate is valid
    ``expiry``.

    ``installed``: the files of its folder ``wheels``.
    """
    port = Address.parse(federation.bind).port
    context = _context("server", federation, "server", installed) | {
        "until": f"{expiry:%Y-%m-%d}" if expiry else "",
        "port": port,
        "capability": "CAP_NET_BIND_SERVICE" if port < UNPRIVILEGED else "",
        "host_network": True,  # so that the bind address takes effect literally
    }
    return dict(_common("server", context)) | app()


def silo(
    federation: Federation,
    name: str,
    digest: str,
    installed: Mapping[str, bytes],
    *,
    own_key: bool,
    digits: str,
) -> Files:
    """A silo's kit without keys, wheels and ``federation.toml``.

    Args:
        federation: the federation.
        name: the silo's.
        digest: SHA-256 in hex of the only app that the silo will run.
        installed: the files of its folder ``wheels``.
        own_key: whether the silo supplied its public key, so that its private key is not in the
            kit.
        digits: the digits to compare by telephone.
    """
    task = federation.study.task if federation.study else None
    context = _context("silo", federation, name, installed) | {
        "own_key": own_key,
        "digits": digits,
        "task": task,
        "classes": tomli_w.dumps({"classes": task.classes}).strip() if task else "",
        "labels": json.dumps(_label_columns(task)) if task else "",
        "suffix": "npz" if task and task.kind == "image" else "csv",
        "capability": "",
        "host_network": federation.loopback,
    }
    files = dict(_common("silo", context))
    return files | {"silo.toml": _rendered("silo.toml", context), PIN: f"{digest}\n".encode()}


def app() -> Files:
    """The Flower app: it names Pomona's two halves and contains no code, so all federations share
    its bytes.
    """
    package = ("__init__.py", "server_app.py", "client_app.py")
    return {
        f"app/{name}": _rendered(f"app/{name}", {"protocol": PROTOCOL})
        for name in ("pyproject.toml", "LICENSE")
    } | {f"app/pomona_app/{name}": _rendered(f"app/{name}", {}) for name in package}


def _label_columns(task: TaskSettings) -> list[str]:
    """Names of the columns with a sample's targets, for a silo to replace with its own."""
    if task.time_edges:
        return ["time", "event"]
    return [f"target-{k}" for k in range(1, task.outputs + 1)]


def _common(role: Role, context: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    yield "README.md", _rendered(f"{role}.md", context)
    yield f"{context['unit']}.service", _rendered("pomona.service", context)
    yield ".dockerignore", _rendered("dockerignore", context)
    yield "wheels/README.txt", _rendered("wheels.txt", context)
    for name in ("start.sh", "compose.yaml", "Dockerfile"):
        yield name, _rendered(name, context)


def _context(
    role: Role, federation: Federation, member: str, installed: Mapping[str, bytes]
) -> dict[str, Any]:
    config = federation.kit_terms.config if federation.kit_terms else None
    return {
        "role": role,
        "unit": f"pomona-{role}-{federation.name}" + (f"-{member}" if role == "silo" else ""),
        "member": member,
        "state": STATE[role],
        "final": FINAL[role],
        "home": f"{INSTALL_ROOT}/{federation.name}/{member}",
        "federation": federation,
        "study": federation.study,
        "config": config,
        "card": config.method.method().card if config else None,
        "version": version("pomona"),
        "wheels": own_wheels(),
        "lock": described(installed[LOCK]),
        "index": index(installed[LOCK]),
        "summed": SUMS in installed,
    }


def _rendered(name: str, context: dict[str, Any]) -> bytes:
    return _TEMPLATES.get_template(f"{name}.jinja").render(context).encode()


SUMS, LOCK = "SHA256SUMS", "requirements.lock"
Libraries = Literal["cpu", "cuda"]


def own_wheels() -> tuple[str, str]:
    """File names of the running Pomona's wheels: its core, and this package."""
    core, federation = (
        f"{name}-{version(name)}-py3-none-any.whl" for name in ("pomona", "pomona_federation")
    )
    return core, federation


def locked(libraries: Libraries) -> Mapping[str, bytes]:
    """The ``requirements.lock`` of this release, with names, versions and SHA-256."""
    return {
        LOCK: (files("pomona_federation.provision") / "locks" / f"{libraries}.lock").read_bytes()
    }


def installed(folder: Path | None, libraries: Libraries | None) -> Mapping[str, bytes]:
    """Files of a kit's folder ``wheels``, without a README: the lead's, if there is a folder, and a
    list of libraries.

    Raises ConfigError for two lists of libraries, or as ``of_folder``.
    """
    wheel_files = of_folder(folder) if folder else {}
    if libraries and LOCK in wheel_files:
        raise ConfigError(f"{folder} has a {LOCK}; remove it, or ask for no other libraries")
    return {**locked(libraries or "cpu"), **wheel_files}


def described(lock: bytes) -> str:
    """A lock's purpose, from its first line."""
    return lock.partition(b"\n")[0].decode(errors="replace").removeprefix("# ")


def index(lock: bytes) -> str:
    """The option of pip for the index that has PyTorch for CPU, if a lock names that; not in the
    lock itself, so that a mirror of PyPI which has it can do without.
    """
    return "--extra-index-url https://download.pytorch.org/whl/cpu " if b"+cpu" in lock else ""


def of_folder(folder: Path) -> Mapping[str, bytes]:
    """Files of a kit's folder ``wheels`` from the lead's folder of that name.

    Pomona's wheels, their SHA-256 as ``sha256sum`` writes it, and a ``requirements.lock`` if there
    is one.

    Raises:
        ConfigError: a wheel of this version of Pomona is missing, or the lock has no hashes.
        StorageError: a file cannot be read.
    """
    names = own_wheels()
    for name, source in zip(names, (".", "./federation"), strict=True):
        if not (folder / name).is_file():
            raise ConfigError(
                f"{folder} has no {name}; build it: pip wheel --no-deps --wheel-dir {folder} "
                f"{source}"
            )
    lock = folder / LOCK
    with reading(folder, "fetch the file again"):
        wheel_files = {name: content(folder / name, MAX_LOG_BYTES) for name in names}
        wheel_files |= {LOCK: content(lock)} if lock.exists() else {}
        sums = "".join(f"{sha256(folder / name)}  {name}\n" for name in names)
    if b"--hash=sha256:" not in wheel_files.get(LOCK, b"--hash=sha256:"):
        raise ConfigError(f"{lock} has no hashes; kits install libraries by hash alone")
    return wheel_files | {SUMS: sums.encode()}
