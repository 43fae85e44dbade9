"""A client's write-ahead privacy ledger: one hash-chained line per release, durable before its
noise is used.

    {"chain": HEX, "client": 3, "key": HEX, "test_seed": null}   the head
    {"chain": HEX, "n": 500, "purpose": "training", "release": HEX, "round": 1, ...}

The format is that of ``storage.hash_chain``. Truncation is detected with a ``Position``, which a
checkpoint stores. A last line that a kill left incomplete is removed: its release was never made.

Entries are per release, not per round: the accountant then also counts the releases of interrupted
rounds, and a release that is repeated bit for bit is recognised by its name and costs nothing.
"""

import errno
import fcntl
import os
import weakref
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pomona.core.errors import LockedError, PrivacyError, StorageError
from pomona.core.files import MAX_LOG_BYTES, content, publish
from pomona.privacy.accounting import Event, combined, effective, rate
from pomona.storage.hash_chain import START, chained, parsed


@dataclass(frozen=True)
class Draw:
    """The address of one Poisson batch: n and size set the sampling rate."""

    round: int
    purpose: str
    step: int
    n: int
    size: int


@dataclass(frozen=True)
class LedgerEntry:
    """One release: its batch, its noise multiplier (0: none), its unique name (hex), and of how
    many clients the noise counts, if it is made in a sum; ``unit``: what was drawn and clipped as
    one, "row" or "group".
    """

    draw: Draw
    sigma: float
    release: str
    honest: int = 1
    unit: str = "row"

    @property
    def effective(self) -> float:
        """Its noise multiplier with that of others in the sum."""
        return effective(self.sigma, rate(self.draw.n, self.draw.size), self.honest)

    def line(self) -> dict[str, Any]:
        """Return the fields of its line, by name, in alphabetical order."""
        in_a_sum = {"honest": self.honest} if self.honest > 1 else {}
        unit = {"unit": self.unit} if self.unit != "row" else {}
        fields = {
            **asdict(self.draw),
            "sigma": self.sigma,
            "release": self.release,
            **in_a_sum,
            **unit,
        }
        return dict(sorted(fields.items()))

    @classmethod
    def from_line(cls, line: dict[str, Any]) -> "LedgerEntry":
        """Create an entry from the fields of a line, the inverse of ``line``."""
        draw = Draw(**{k: line[k] for k in Draw.__dataclass_fields__})
        unit = str(line.get("unit", "row"))
        if unit not in {"row", "group"}:
            raise ValueError(f"unit is {unit!r}")
        return cls(
            draw, float(line["sigma"]), str(line["release"]), int(line.get("honest", 1)), unit
        )


class Position(NamedTuple):
    """A ledger's number of entries and the chain hash of the last, for checkpoints."""

    entries: int
    chain: str


@dataclass(frozen=True)
class Head:
    """Head of a ledger: client, fingerprint of its key, and the test seed if one is set."""

    client: int
    key: str
    test_seed: int | None


@dataclass
class Ledger:
    """An open ledger, locked by this process."""

    path: Path
    head: Head
    _handle: int
    _chains: list[str] = field(default_factory=list)
    _releases: set[str] = field(default_factory=set)
    _batches: dict[Draw, list[LedgerEntry]] = field(default_factory=dict)
    _events: Counter[Event] = field(default_factory=Counter)

    @classmethod
    def open(cls, path: Path) -> "Ledger":
        """Open an existing ledger.

        Raises:
            PrivacyError: it is missing or damaged, so that the privacy spent is unknown.
            LockedError: another process has it open.
        """
        try:
            handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as fault:
            raise PrivacyError(
                f"{path}: no privacy ledger ({fault.strerror}); what was spent is unknown: restore "
                "it, or start over with a new folder and new data"
            ) from fault
        try:
            ledger = cls(path, Head(0, "", None), handle)
            weakref.finalize(ledger, os.close, handle)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockedError(f"{path} is in use by another process; wait until it ends") from None
        ledger._read()
        return ledger

    @classmethod
    def create(cls, path: Path, head: Head) -> None:
        """Write an empty ledger; only another empty one may be replaced."""
        line, _ = chained(START, asdict(head))
        publish(path, [line], "ledger.unfinished", 0o600)

    def append(self, entry: LedgerEntry) -> None:
        """Record a release durably before its noise is drawn; known releases cost nothing.

        Raises StorageError if the file cannot be written; the release must then not be made.
        """
        if entry.release in self._releases:
            return
        line, chain = chained(self._chains[-1], entry.line())
        end = os.lseek(self._handle, 0, os.SEEK_END)
        try:
            if os.write(self._handle, line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._handle)
        except OSError as fault:
            with suppress(OSError):
                os.ftruncate(self._handle, end)
            raise StorageError(
                f"cannot write {self.path} ({fault.strerror}); the release was not made"
            ) from fault
        self._add(entry, chain)

    def history(self, also: LedgerEntry | None = None) -> Counter[Event]:
        """Return all releases so far as events, plus one more entry if given."""
        return (
            self._events if also is None or also.release in self._releases else self.planned([also])
        )

    def own_events(self) -> Counter[Event]:
        """Return all releases so far as events with the client's own noise alone."""
        return Counter(
            Event(combined(entry.sigma for entry in entries), rate(draw.n, draw.size))
            for draw, entries in self._batches.items()
        )

    def planned(self, entries: Iterable[LedgerEntry]) -> Counter[Event]:
        """Return the events of all releases so far and of further planned ones; repeated releases
        count once.
        """
        events, batches = self._events.copy(), dict[Draw, list[float]]()
        for entry in entries:
            if entry.release in self._releases:
                continue
            recorded = self._batches.get(entry.draw, ())
            sigmas = batches.setdefault(entry.draw, [e.effective for e in recorded])
            q = rate(entry.draw.n, entry.draw.size)
            if sigmas:
                events[Event(combined(sigmas), q)] -= 1
            sigmas.append(entry.effective)
            events[Event(combined(sigmas), q)] += 1
        return +events

    def units(self) -> set[str]:
        """Return the units of all releases so far."""
        return {entry.unit for entries in self._batches.values() for entry in entries}

    def position(self) -> Position:
        """Current position."""
        return Position(len(self._chains) - 1, self._chains[-1])

    def require(self, position: Position) -> None:
        """Raise PrivacyError unless the ledger is at a position or beyond it."""
        entries, chain = position
        if entries >= len(self._chains) or self._chains[entries] != chain:
            raise PrivacyError(
                f"{self.path}: the privacy ledger has {len(self._chains) - 1} entries and does not "
                f"continue from the {entries} that the checkpoint knows: it was rolled back or "
                "replaced; restore the ledger"
            )

    def _add(self, entry: LedgerEntry, chain: str) -> None:
        self._events = self.history(entry)
        self._chains.append(chain)
        self._releases.add(entry.release)
        self._batches.setdefault(entry.draw, []).append(entry)

    def _read(self) -> None:
        text = content(self.path, MAX_LOG_BYTES)
        complete = text.rfind(b"\n") + 1
        os.ftruncate(self._handle, complete)  # incomplete after a kill
        chain = START
        for number, line in enumerate(text[:complete].splitlines()):
            try:
                fields = parsed(line)
                claimed = fields.pop("chain") if fields else ""
                if not fields or chained(chain, fields) != (line + b"\n", claimed):
                    raise ValueError("its checksum does not fit")
                chain = claimed
                if number:
                    self._add(LedgerEntry.from_line(fields), chain)
                else:
                    self.head = Head(**fields)
                    self._chains.append(chain)
            except (ValueError, KeyError, TypeError, AttributeError) as fault:
                raise PrivacyError(
                    f"{self.path}, line {number + 1}: the privacy ledger was changed or damaged "
                    f"({fault}); restore it"
                ) from None
        if not self._chains:
            raise PrivacyError(f"{self.path}: the privacy ledger is empty; restore it")
