"""The contents of a kit: which files to keep when its study has ended, and which are secret.

The first rule that matches a file's path decides. Files that match no rule belong to the owner:
data, custom code. Symbolic links are not followed, so nothing outside the kit is ever listed.
"""

import os
import re
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Literal

from pomona.core.errors import ConfigError, StorageError
from pomona.core.files import reading
from pomona.storage.lock import LOCK
from pomona_federation.study import RESULTS

FileKind = Literal["keep", "secret", "kit", "own"]
Role = Literal["server", "silo"]

FEDERATION_FILE = "federation.toml"
STATE: dict[Role, str] = {"server": "run", "silo": "state"}
MANAGED = ("app", "certs", "keys", "run", "state", "weights", "wheels")  # folders of kits
# of a study and of a trial: they are like run/ and state/, which are the kit's own study's
STUDY_FOLDER = re.compile(r"\A(run|state)/studies/[^/]+/(trials/[^/]+/)?")
WILDCARDS = {"*": "[^/]*", "**": ".*"}  # of a pattern, as regular expressions
MARKERS: dict[Role, tuple[str, ...]] = {
    "silo": ("silo.toml", "keys/silo.pub", "state"),
    "server": ("run", "app"),
}


@dataclass(frozen=True)
class Rule:
    """Files of a kit by a pattern of ``fits``, for paths ``without_study``: their kind and a
    description.

    ``kind``: "keep" for results and records, "secret" for keys and states, "kit" for the rest of
    the kit, "own" for the owner's files.
    """

    pattern: str
    kind: FileKind
    description: str


KIT_FILES = (
    *("wheels/**", "app/**", "app.sha256", "weights.safetensors", "weights/*.safetensors"),
    *("README.md", "Dockerfile", ".dockerignore", "compose.yaml", "start.sh", "pomona-*.service"),
)
RECORD = ("config.toml", "events.jsonl", "clients.csv", "rounds.csv", "summary.json", "roster.json")
COMMON = (
    Rule(FEDERATION_FILE, "keep", "what was agreed"),
    Rule("certs/*.key", "secret", "private key"),
    Rule("keys/*.key", "secret", "private key, this silo's identity"),
    Rule("certs/**", "kit", "certificates, not secret"),
    *(Rule(name, "kit", "parts of the kit, not secret") for name in KIT_FILES),
)
RULES: dict[Role, tuple[Rule, ...]] = {
    "silo": (
        *COMMON,
        Rule("state/study.json", "keep", "studies, and who accepted them"),
        Rule("policy.toml", "keep", "rules by which studies were accepted"),
        Rule("state/models/**", "keep", "your models, with their cards"),
        Rule("state/report.md", "keep", "your report"),
        Rule("state/audit.jsonl", "keep", "audit log"),
        Rule("state/private/dp/*/ledger.jsonl", "keep", "privacy ledger of a study"),
        Rule("state/private/budget.json", "keep", "privacy budget of all studies"),
        Rule("state/disclosed/*.json", "keep", "what surveys have reported of your data"),
        Rule("state/private/**", "secret", "key of the noise"),
        Rule("state/cache/**", "secret", "other silos' models"),
        Rule("state/checkpoints/**", "secret", "what the method keeps between rounds, and answers"),
        Rule("state/logs/**", "secret", "logs, with names and paths"),
        Rule("state/**", "secret", "other states, with other silos' names"),
        Rule("silo.toml", "secret", "own settings: paths of data, a proxy's password"),
        Rule("keys/**", "kit", "public keys, not secret"),
    ),
    "server": (
        *COMMON,
        Rule("server.toml", "secret", "own settings: addresses of notices"),
        Rule("keys/**", "keep", "public keys, with which signatures can be verified later"),
        Rule("run/audit.jsonl", "keep", "audit log"),
        *(Rule(f"run/{name}", "keep", "the run's record: shared figures") for name in RECORD),
        *(
            Rule(f"run/{name}", "keep", "results of surveys, evaluations and searches")
            for name in (*(f"{result}.*" for result in RESULTS.values()), "*.toml")
        ),
        Rule("run/study.json", "keep", "studies"),
        Rule("run/consents.json", "keep", "who accepted which study"),
        Rule("run/checkpoints/**", "secret", "silos' models"),
        Rule("run/superlink.db*", "secret", "Flower's messages, with silos' models"),
        Rule("run/logs/**", "secret", "logs, with names and paths"),
        Rule("run/*report*", "keep", "reports"),
        Rule("run/arrivals", "kit", "a pipe between the server's processes"),
        Rule("run/**", "secret", "other states"),
    ),
}
OWNER_RULE = Rule("**", "own", "yours, no part of the kit: data, own code")


@dataclass(frozen=True)
class Item:
    """A file of a kit: its path, the matching rule, its size, and whether it is a plain file with
    no other name.

    A backup refuses a link, a pipe, or a file that has another name elsewhere (``plain`` false).
    """

    path: PurePosixPath
    rule: Rule
    size: int
    plain: bool


def role_of(folder: Path) -> Role:
    """The role of a kit. Raises ConfigError for a folder that is not one."""
    roles = [r for r, names in MARKERS.items() if any((folder / name).exists() for name in names)]
    if not (folder / FEDERATION_FILE).is_file() or len(roles) != 1:
        raise ConfigError(f"{folder} is not a kit; name one with --folder")
    return roles[0]


def require_kit(folder: Path, role: Role) -> None:
    """Raise ConfigError unless a folder is a silo's or a server's kit."""
    if (kit_role := role_of(folder)) != role:
        raise ConfigError(
            f"{folder} is the kit of a {kit_role}; use `pomona {kit_role}`, or name another one "
            "with --folder"
        )


def contents(folder: Path) -> list[Item]:
    """All files of a kit by path, without the state's lock.

    Raises ConfigError for a folder that is not a kit, StorageError if a folder of the kit is a
    link, is on another file system, or cannot be read.
    """
    role, folder = role_of(folder), folder.resolve()  # it may be a link itself
    _require_own_folders(folder)
    items: list[Item] = []
    with reading(folder, "fix its permissions"):
        for directory, names, files, handle in os.fwalk(
            folder, follow_symlinks=False, onerror=_unless_gone
        ):
            parent = PurePosixPath(Path(directory).relative_to(folder).as_posix())
            for path in (parent / name for name in (*files, *names)):
                with suppress(FileNotFoundError):  # a running silo removes files
                    info = os.stat(path.name, dir_fd=handle, follow_symlinks=False)
                    plain = stat.S_ISREG(info.st_mode) and info.st_nlink == 1
                    if not stat.S_ISDIR(info.st_mode) and path != PurePosixPath(STATE[role], LOCK):
                        items.append(Item(path, rule(path, RULES[role]), info.st_size, plain))
    return sorted(items, key=lambda item: item.path)


def rule(path: PurePosixPath, rules: Sequence[Rule]) -> Rule:
    """The first rule that matches a path in a kit."""
    own_path = without_study(path)
    return next((r for r in rules if fits(own_path, r.pattern)), OWNER_RULE)


def without_study(path: PurePosixPath) -> str:
    """A path as if its study were the kit's own: the names of studies decide nothing."""
    return STUDY_FOLDER.sub(r"\1/", str(path))


def fits(path: str, pattern: str) -> bool:
    """Whether a path has a pattern's form: ``*`` is any part of a name, ``**`` any part of a
    path.
    """
    return _regex(pattern).fullmatch(path) is not None


@cache
def _regex(pattern: str) -> re.Pattern[str]:
    tokens = re.split(r"(\*+)", pattern)
    return re.compile(
        "".join(WILDCARDS.get(token, re.escape(token)) for token in tokens), re.DOTALL
    )


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


def _unless_gone(fault: OSError) -> None:
    if not isinstance(fault, FileNotFoundError):
        raise fault
