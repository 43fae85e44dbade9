"""What a backup brings into a restored kit: what runs or decides there, and what it knows of the privacy spent.

A backup holds the key and all by which a silo decides, and no signature: whoever can write where it lies can have put
code, rules or decisions into it. They count only where the administrator says so, after they were named.
"""

import hashlib
from pathlib import Path

from pomona.core.files import sha256
from pomona.core.toml import flat, read_tree
from pomona.deploy.installation.contents import Role
from pomona.deploy.provision.kit_files import start_script
from pomona.deploy.silo.privacy.privacy_budget import PrivacyBudget
from pomona.deploy.silo.studies.consent_rules import FILE as POLICY
from pomona.deploy.silo.studies.known_studies import KnownStudies


def deciding(kit: Path, whose: Role) -> list[str]:
    """Names of what runs or decides in a kit and need not be its own: code, rules, accepted studies.

    Raises ConfigError, StorageError or OSError for files that cannot be read.
    """
    found = [f"code in {path.name}" for path in sorted(kit.glob("*.py"))]
    if (kit / "start.sh").exists() and sha256(kit / "start.sh") != hashlib.sha256(start_script(whose)).hexdigest():
        found.append("start.sh, which is not that of a kit")
    if whose == "server":
        return found
    if (kit / "silo.toml").exists():
        named = {v for k, v in flat(read_tree(kit / "silo.toml")).items() if k.endswith("name") and ":" in str(v)}
        found += [f"silo.toml, which names the code {name}" for name in sorted(named)]
    if (kit / POLICY).exists():
        found.append(f"{POLICY}, the rules by which studies are accepted")
    accepted = [known for known in KnownStudies(kit).all if known.standing == "accepted"]
    return found + [f"study {known.study.name}, accepted by {known.by or 'nobody named'}" for known in accepted]


def privacy_known(kit: Path) -> list[str]:
    """A line for each reservation of privacy in a silo's kit. Raises PrivacyError, StorageError."""
    return [f"study {r.study}: {r.cost}, since {r.when}" for r in PrivacyBudget(kit).reservations]
