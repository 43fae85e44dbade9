"""Foreign content of a restored kit: code, rules and decisions from its backup, and the privacy spent.

A backup holds the key and everything that a silo decides by, and has no signature: anyone who can write to its location
may have added code, rules or decisions. They take effect only after they have been listed and the administrator has
confirmed them.
"""

from collections.abc import Iterator, Mapping
from importlib.machinery import all_suffixes
from pathlib import Path
from typing import Any

from pomona.core.errors import PomonaError
from pomona.core.files import content
from pomona.core.registry import own_code_barred
from pomona.core.toml import read_tree
from pomona.models.packages import package
from pomona_federation.agreement import Federation
from pomona_federation.installation.contents import AGREED, Role
from pomona_federation.json_store import read_json
from pomona_federation.provision import kit_files, wheels
from pomona_federation.server.members.member_registry import ROSTER, RegistryFile
from pomona_federation.silo.data.privacy_budget import PrivacyBudget
from pomona_federation.silo.settings import SiloFile
from pomona_federation.silo.studies.consent_rules import FILE as POLICY
from pomona_federation.silo.studies.known_studies import KnownStudies

STARTED = ("start.sh", "Dockerfile", "compose.yaml", ".dockerignore", "*.service")  # files that start a kit
CODE = tuple(all_suffixes())  # suffixes of files that Python imports, also from folders of the kit
NAMING = {AGREED: ("run", "search"), "silo.toml": ("data", "views", "code")}  # sections whose values may name code


def deciding(kit: Path, whose: Role) -> list[str]:
    """Names of everything that runs or decides in a kit and may come from elsewhere: code, rules, accepted studies.

    Nothing is imported. Raises ConfigError, StorageError or OSError for files that cannot be read.
    """
    found = [*_code(kit), *(f"{path.name}, which is not that of a kit" for path in _foreign(kit, whose)), *_named(kit)]
    return found + (_members(kit) if whose == "server" else _accepted(kit))


def _code(kit: Path) -> list[str]:
    """Files of code that are not the app's."""
    app = kit_files.app()
    files = sorted((str(path.relative_to(kit)), path) for path in kit.rglob("*") if path.is_file())
    code = ((name, path) for name, path in files if name.endswith(CODE))
    return [f"code in {name}" for name, path in code if name not in app or app[name] != content(path)]


def _named(kit: Path) -> list[str]:
    """Code that settings name."""
    found = []
    for file, sections in NAMING.items():
        tree = read_tree(kit / file) if (kit / file).exists() else {}
        named = {name for section in sections for name in _texts(tree.get(section)) if ":" in name}
        found += [f"{file}, which names the code {name}" for name in sorted(named) if not package(name)]
    return found


def _accepted(kit: Path) -> list[str]:
    """A silo's rules, and the studies that it has accepted."""
    rules = [f"{POLICY}, the rules by which studies are accepted"] if (kit / POLICY).exists() else []
    accepted = [known for known in KnownStudies(kit, foreign=True).all if known.status == "accepted"]
    return rules + [f"study {known.study.name}, accepted by {known.by or 'nobody named'}" for known in accepted]


def _members(kit: Path) -> list[str]:
    """Return the name of a server's registry with the members that it admits, if there is one."""
    registry = read_json(RegistryFile, kit / "run" / ROSTER)
    names = [silo.name for silo in registry.silos if not silo.revoked] if registry else []
    return [f"run/{ROSTER}, by which the members are {', '.join(names)}"] if names else []


def _foreign(kit: Path, whose: Role) -> list[Path]:
    """Files that start a kit, or list what it installs, and differ from what this release generates."""
    found = [path for pattern in STARTED for path in sorted(kit.glob(pattern))]
    own = _made(kit, whose) if found else {}
    lock = kit / "wheels" / wheels.LOCK
    ours = [wheels.locked(libraries)[wheels.LOCK] for libraries in ("cpu", "cuda")]
    strange = [lock] if lock.exists() and content(lock) not in ours else []
    return [path for path in found if own.get(path.name) != content(path)] + strange


def _made(kit: Path, whose: Role) -> kit_files.Files:
    """The files that this release generates from a kit's settings; only the script if it cannot read them."""
    try:
        with own_code_barred():
            federation = Federation.read(kit / AGREED)
            there = (kit / "wheels" / name for name in (wheels.SUMS, wheels.LOCK))
            installed = {**wheels.locked("cpu"), **{path.name: content(path) for path in there if path.is_file()}}
            if whose == "server":
                return kit_files.server(federation, None, installed)
            return kit_files.silo(
                federation, SiloFile.load(kit / "silo.toml").name, "", installed, own_key=False, digits=""
            )
    except PomonaError:
        return {"start.sh": kit_files.start_script(whose)}


def _texts(value: Any) -> Iterator[str]:
    """All strings among the values of a tree."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(inner)


def privacy_known(kit: Path) -> list[str]:
    """A line for each privacy reservation in a silo's kit. Raises PrivacyError, StorageError."""
    return [f"study {r.study}: {r.cost}, since {r.when}" for r in PrivacyBudget(kit, foreign=True).reservations]
