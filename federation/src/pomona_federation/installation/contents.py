"""The contents of a kit: which files to keep when its study has ended, and which are secret.

The first rule that matches a file's path decides. Files that match no rule belong to the owner:
data, custom code. Symbolic links are not followed, so nothing outside the kit is ever listed.
"""

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Literal

from pomona.core.errors import ConfigError, StorageError
from pomona.storage.lock import LOCK
from pomona_federation.study import RESULTS

Kind = Literal["keep", "secret", "kit", "own"]
Role = Literal["server", "silo"]

AGREED = "federation.toml"
STATE: dict[Role, str] = {"server": "run", "silo": "state"}
MANAGED = ("app", "certs", "keys", "run", "state", "wheels")  # folders of kits
SIGNS: dict[Role, tuple[str, ...]] = {
    "silo": ("silo.toml", "keys/silo.pub", "state"),
    "server": ("run", "app"),
}


@dataclass(frozen=True)
class Rule:
    """Files of a kit by path, with ``*`` for any part: their kind and a description.

    ``kind``: "keep" for results and records, "secret" for keys and states, "kit" for the rest of
    the kit, "own" for the owner's files.
    """

    pattern: str
    kind: Kind
    what: str


COMMON = (
    Rule(AGREED, "keep", "what was agreed"),
    Rule("certs/*.key", "secret", "private key"),
    Rule("keys/*.key", "secret", "private key, this silo's identity"),
    Rule("certs/*", "kit", "certificates, not secret"),
    *(
        Rule(name, "kit", "parts of the kit, not secret")
        for name in (
            "wheels/*",
            "app/*",
            "app.sha256",
            "weights.safetensors",
            "README.md",
            "Dockerfile",
        )
    ),
    *(
        Rule(name, "kit", "parts of the kit, not secret")
        for name in (".dockerignore", "compose.yaml", "start.sh", "pomona-*.service")
    ),
)
RULES: dict[Role, tuple[Rule, ...]] = {
    "silo": (
        *COMMON,
        Rule("state/*study.json", "keep", "studies, and who accepted them"),
        Rule("policy.toml", "keep", "rules by which studies were accepted"),
        Rule("state/*models/*", "keep", "your models, with their cards"),
        Rule("state/*report.md", "keep", "your report"),
        Rule("state/*audit.jsonl", "keep", "audit log"),
        Rule("state/*ledger.jsonl", "keep", "privacy ledger: what was spent on your data"),
        Rule(
            "state/private/budget.json",
            "keep",
            "privacy budget: what all studies may have spent on your data",
        ),
        Rule("state/disclosed/*.json", "keep", "what surveys have reported of your data"),
        Rule("state/private/*", "secret", "key of the noise"),
        Rule("state/*cache/*", "secret", "other silos' models"),
        Rule("state/*checkpoints/*", "secret", "what the method keeps between rounds, and answers"),
        Rule("state/*logs/*", "secret", "logs, with names and paths"),
        Rule(
            "state/*",
            "secret",
            "other states: tasks, scores with other silos' names, Flower's files",
        ),
        Rule("silo.toml", "secret", "own settings: paths of data, a proxy's password"),
        Rule("keys/*", "kit", "public keys, not secret"),
    ),
    "server": (
        *COMMON,
        Rule("keys/*", "keep", "public keys, with which signatures can be verified later"),
        Rule("run/*audit.jsonl", "keep", "audit log"),
        *(
            Rule(
                f"run/*{name}",
                "keep",
                "record of the run: figures that silos agreed to share, no models",
            )
            for name in (
                "config.toml",
                "events.jsonl",
                "clients.csv",
                "rounds.csv",
                "summary.json",
                "roster.json",
            )
        ),
        *(
            Rule(f"run/studies/*/{name}", "keep", "results of surveys, evaluations and searches")
            for name in (*(f"{result}.*" for result in RESULTS.values()), "*.toml")
        ),
        Rule("run/*study.json", "keep", "studies"),
        Rule("run/*consents.json", "keep", "who accepted which study"),
        Rule("run/*checkpoints/*", "secret", "silos' models"),
        Rule("run/*superlink.db*", "secret", "Flower's messages, with silos' models"),
        Rule("run/*logs/*", "secret", "logs, with names and paths"),
        Rule("run/*report*", "keep", "reports"),
        Rule("run/arrivals", "kit", "a pipe between the server's processes"),
        Rule("run/*", "secret", "other states"),
    ),
}
OWN = Rule("*", "own", "yours, no part of the kit: data, own code")


@dataclass(frozen=True)
class Item:
    """A file of a kit: its path, the matching rule, its size, and whether it is a plain file with
    no other name.

    A backup leaves out a link, a pipe, or a file that has another name elsewhere (``plain`` false).
    """

    path: PurePosixPath
    rule: Rule
    size: int
    plain: bool


def require_kit(folder: Path, whose: Role) -> None:
    """Raise ConfigError unless a folder is a silo's or a server's kit."""
    other: Role = "server" if whose == "silo" else "silo"
    if any((folder / sign).exists() for sign in SIGNS[other]):
        raise ConfigError(
            f"{folder} is the kit of a {other}; use `pomona {other}`, or name another one with "
            "--folder"
        )
    if not ((folder / AGREED).is_file() and any((folder / sign).exists() for sign in SIGNS[whose])):
        raise ConfigError(f"{folder} is not a kit of a {whose}; name one with --folder")


def contents(folder: Path, whose: Role) -> list[Item]:
    """All files of a kit by path, without the state's lock.

    Raises StorageError if a folder of the kit is a link, is on another file system, or cannot be
    read.
    """
    _require_own_folders(folder)
    found: list[Item] = []
    try:
        for place, names, files, handle in os.fwalk(folder, follow_symlinks=False, onerror=_raise):
            here = PurePosixPath(Path(place).relative_to(folder).as_posix())
            for name in (*files, *names):
                info = os.stat(name, dir_fd=handle, follow_symlinks=False)
                if not stat.S_ISDIR(info.st_mode) and here / name != PurePosixPath(
                    STATE[whose], LOCK
                ):
                    plain = stat.S_ISREG(info.st_mode) and info.st_nlink == 1
                    found.append(
                        Item(here / name, rule(here / name, RULES[whose]), info.st_size, plain)
                    )
    except OSError as fault:
        raise StorageError(
            f"{fault.filename}: cannot be read ({fault.strerror}); fix its permissions"
        ) from None
    return sorted(found, key=lambda item: item.path)


def rule(path: PurePosixPath, rules: Sequence[Rule]) -> Rule:
    """The first rule that matches a path in a kit."""
    return next((r for r in rules if fnmatchcase(str(path), r.pattern)), OWN)


def _require_own_folders(folder: Path) -> None:
    for name in MANAGED:
        path = folder / name
        if path.is_symlink():
            raise StorageError(
                f"{path} is a symbolic link, and nothing outside the kit is read; put the folder "
                "itself there"
            )
        if path.is_dir() and path.stat().st_dev != folder.stat().st_dev:
            raise StorageError(
                f"{path} is another file system; move its content into the kit, then continue"
            )


def _raise(fault: OSError) -> None:
    raise fault
