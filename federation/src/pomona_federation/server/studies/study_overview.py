"""Overview of a server's studies, from the files in its kit alone."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pomona.core.errors import ConfigError
from pomona.core.files import text
from pomona.storage.run_status import read_status
from pomona_federation.server.members.registry_admin import entries
from pomona_federation.server.studies.consents import Consents
from pomona_federation.server.studies.study_queue import QueuedStudy, StudyQueue
from pomona_federation.study import RESULTS

Row = dict[str, Any]


def overview(kit: Path) -> list[Row]:
    """A row for each study, in order."""
    queue = StudyQueue(kit)
    members = [entry.name for entry in entries(kit) if not entry.revoked]
    return [_row(queue, study, members) for study in queue.all]


def result_of(kit: Path, name: str, form: Literal["json", "md"]) -> str:
    """The text of a study's result file. Raises ConfigError if it has none, or none yet."""
    queue = StudyQueue(kit)
    study = queue.named(name)
    kind = study.known.study.kind if study.known else "train"
    if kind not in RESULTS:
        raise ConfigError(f"study {study.title} is of kind {kind}, whose result are models: `pomona report` shows it")
    path = study.folder / f"{RESULTS[kind]}.{form}"
    try:
        return text(path)
    except FileNotFoundError:
        raise ConfigError(f"study {study.title} is {queue.state(study)} and has no result yet") from None


def _row(queue: StudyQueue, study: QueuedStudy, members: list[str]) -> Row:
    said, rounds, known = read_status(study.folder), read_status(study.at_work), study.known
    decided = Consents(study.folder).decisions if known else {}
    return {
        "study": study.title,
        "hash": known.agreement[:16] if known else "",
        "kind": known.study.kind if known else "train",
        "state": queue.state(study),
        "round": rounds.round if rounds else 0,
        "accepted": ", ".join(sorted(name for name, taken in decided.items() if taken.accepted)),
        "declined": ", ".join(sorted(name for name, taken in decided.items() if not taken.accepted)),
        "undecided": ", ".join(name for name in members if name not in decided) if known else "",
        "submitted": f"{datetime.fromtimestamp(known.submitted, UTC):%Y-%m-%d %H:%M}Z" if known else "",
        "why": said.reason if said else "",
    }
