"""Export of an audit log to syslog: every line once or more, in order, from the last one on that has been sent."""

import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pomona.core.bounds import Line
from pomona.core.errors import ConfigError, StorageError, near
from pomona.core.settings import Settings
from pomona.storage.atomic_io import writing
from pomona.storage.hash_chain import parsed
from pomona.storage.lock import locked
from pomona_federation.agreement import Federation
from pomona_federation.json_store import read_json, write_json
from pomona_federation.monitoring.line_files import Mark, RewrittenError, lines_after
from pomona_federation.monitoring.syslog import (
    FACILITIES,
    INFORMATIONAL,
    LONGEST,
    WARNING,
    Connection,
    Destination,
    Origin,
    local_message,
    message,
)
from pomona_federation.supervision.supervisor import backoff

PAUSE = 1.0  # seconds between looks for new lines
FIRST, MOST = 1.0, 60.0  # seconds before a lost connection is tried again
BATCH = 200  # lines between two notes of how far the export has come
CURSOR = "cursor.json"
GRAVE = {"refused", "absent", "lost", "torn"}  # events that somebody should look at


class Cursor(Settings):
    """How far the lines of an audit log have been sent to one destination."""

    destination: Line
    mark: Mark


@dataclass
class AuditExport:
    """Sends an audit log's lines to one destination, one process at a time.

    Args:
        path: of the audit log.
        folder: of the cursor of this destination.
        to: where.
        origin: who speaks.
        say: told when a connection is lost and when it is there again.
    """

    path: Path
    folder: Path
    to: Destination
    origin: Origin
    say: Callable[[str], None]

    def once(self) -> int:
        """Send all lines that have not been sent; their number.

        Raises:
            LockedError: another process exports to the same destination.
            StorageError: the destination cannot be reached, the log was rewritten, or the cursor cannot be written.
        """
        with locked(self.folder):
            link = Connection(self.to)
            try:
                return sum(iter(lambda: self._batch(link), 0))
            except OSError as fault:
                raise StorageError(f"{self.to}: {fault}; what was not sent goes with the next export") from None
            finally:
                link.close()

    def follow(self) -> None:
        """Send all lines, and those that come, until an exception ends it; a lost connection is tried again for ever.

        Raises ``once``'s errors, but for destinations that cannot be reached.
        """
        with locked(self.folder):
            link, failures = Connection(self.to), 0
            try:
                while True:
                    try:
                        link.check()
                        sent = self._batch(link)
                    except OSError as fault:
                        failures += 1
                        delay = backoff(failures, FIRST, MOST)
                        self.say(f"{self.to} is lost ({fault}); tried again in {delay:g} s, lines wait until then")
                        time.sleep(delay)
                        continue
                    if sent and failures:
                        self.say(f"{self.to} is there again")
                        failures = 0
                    if not sent:
                        time.sleep(PAUSE)
            finally:
                link.close()

    def _batch(self, link: Connection) -> int:
        """Send some lines and write down how far that is; their number. Raises OSError for a lost connection."""
        known = read_json(Cursor, self.folder / CURSOR, "remove it, and all lines are sent again")
        messages: list[bytes] = []
        mark, seen = known.mark if known else Mark(), 0
        try:
            for text, now in lines_after(self.path, mark, BATCH):
                messages += self._messages(text)
                mark, seen = now, seen + 1
        except RewrittenError as fault:
            raise StorageError(
                f"{fault}: `--verify` says where; to export all of it anew, remove {self.folder / CURSOR}"
            ) from None
        if seen:
            link.send(messages)
            with writing(self.folder):
                write_json(self.folder / CURSOR, Cursor(destination=str(self.to), mark=mark))
        return seen

    def _messages(self, text: bytes) -> Iterator[bytes]:
        """A line as a message, word for word so that its chain can be verified; of a torn piece none."""
        fields = parsed(text)
        if fields is None:
            return
        event, moment = str(fields.get("event")), str(fields.get("time"))
        severity = WARNING if event in GRAVE or fields.get("admitted") is False else INFORMATIONAL
        line = text.decode()
        if len(text) > LONGEST:
            line = json.dumps({"chain": fields["chain"], "event": event[:100], "left_out": len(text)})
        if self.to.kind == "unix":
            yield local_message(self.origin, severity, line)
        else:
            yield message(self.origin, severity, moment, event, line)


def exporter(side: str, kit: Path, path: Path, to: str, facility: str, say: Callable[[str], None]) -> AuditExport:
    """The export of a kit's audit log; how far it has come is kept in ``exports/`` beside the log.

    Args:
        side: "server" or "silo".
        kit: its folder.
        path: of the log.
        to: as ``Destination.parse`` reads it.
        facility: one of syslog's names.
        say: as in ``AuditExport``.

    Raises ConfigError for a destination or facility that is none, or a folder that is no kit.
    """
    destination, federation = Destination.parse(to), Federation.read(kit / "federation.toml")
    if facility not in FACILITIES:
        raise ConfigError(f"syslog has no facility {facility!r}; {near(facility, FACILITIES)}")
    if not path.exists():
        raise StorageError(f"{path} is missing; nothing has been started here yet")
    origin = Origin(f"pomona-{side}", federation.name, FACILITIES[facility], socket.gethostname())
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", str(destination)).strip("-")
    return AuditExport(path, path.parent / "exports" / name, destination, origin, say)
