"""Message lines in a silo's audit log, rate-limited so that no server can fill it.

Within an hour a repeated line is written once, and refusals a few times; others are counted, and the next written line
reports their number as ``unwritten``.
"""

import hashlib
import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import Field

from pomona.core.bounds import Count, Sha256
from pomona.core.errors import StorageError
from pomona.core.settings import Settings
from pomona.storage.atomic_io import writing
from pomona.storage.lock import waiting_lock
from pomona_federation.audit import Audit
from pomona_federation.json_store import read_json, write_json

FILE = "audited.json"  # in the folder state/node/
REFUSED = "refused"
REFUSALS = 20  # an hour
REMEMBERED = 100  # recent lines by their hashes
HOUR = 3600  # seconds


class AuditedHour(Settings):
    """One hour of the log: hashes of its last lines, refusals, and lines suppressed since the last written one."""

    hour: Count = 0
    lines: tuple[Sha256, ...] = Field((), max_length=REMEMBERED)
    refusals: Count = 0
    unwritten: Count = 0


def write(kit: Path, event: str, **fields: Any) -> None:
    """Write or count a line. Raises StorageError."""
    state = kit / "state"
    place, hour = state / "node", int(time.time() // HOUR)
    line = hashlib.sha256(json.dumps([event, fields], sort_keys=True).encode()).hexdigest()
    with writing(place):
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        with waiting_lock(place / ".audited.lock"):
            known = _known(place / FILE)
            if known.hour != hour:
                known = AuditedHour(hour=hour, unwritten=known.unwritten)
            if line in known.lines or (event == REFUSED and known.refusals >= REFUSALS):
                known = known.model_copy(update={"unwritten": known.unwritten + 1})
            else:
                more = {"unwritten": known.unwritten} if known.unwritten else {}
                with Audit(state / "audit.jsonl") as audit:
                    audit.write(event, **fields, **more)
                lines = (*known.lines, line)[-REMEMBERED:]
                known = AuditedHour(hour=hour, lines=lines, refusals=known.refusals + (event == REFUSED))
            write_json(place / FILE, known)


def _known(path: Path) -> AuditedHour:
    with suppress(StorageError):  # counting starts anew
        return read_json(AuditedHour, path) or AuditedHour()
    return AuditedHour()
