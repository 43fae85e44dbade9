"""History of a server's runs from events and audit log, each line read once while the files grow."""

import hashlib
import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from pomona.core.bounds import Count, Sha256, plain
from pomona.core.errors import StorageError
from pomona.core.files import opened
from pomona.core.settings import Settings
from pomona.metrics.client_statistics import summarize
from pomona.record import events
from pomona.record.rows import Evaluation
from pomona.storage.hash_chain import parsed

RECENT = 200  # most decisions and rounds kept individually
SPOKE = {"present", "received"}  # events backed by a silo's own signature
Key = tuple[str, str, str]  # model, when, split


AT_ONCE = 10_000  # lines per look


class Mark(Settings):
    """A position in a file: where the last seen line begins and ends, and its SHA-256."""

    begin: Count = 0
    end: Count = 0
    sha256: Sha256 = hashlib.sha256().hexdigest()


class RewrittenError(StorageError):
    """The file no longer has the last seen line in its place."""


def lines_after(path: Path, mark: Mark, most: int = AT_ONCE) -> Iterator[tuple[bytes, Mark]]:
    """Complete lines after a mark, each with the mark after it; a last line without a line feed is left for later.

    Args:
        path: of the file; a missing file has no lines.
        mark: ``Mark()`` for the beginning.
        most: lines per call.

    Raises:
        RewrittenError: the marked line has changed or is gone.
        StorageError: the file cannot be read.
    """
    try:
        with opened(path) as file:
            file.seek(mark.begin)
            if hashlib.sha256(file.read(mark.end - mark.begin)).hexdigest() != mark.sha256:
                raise RewrittenError(f"{path} was rewritten: the line that ended at byte {mark.end} is another one now")
            at = mark.end
            for text in islice(file, most):
                if not text.endswith(b"\n"):
                    return
                now = Mark(begin=at, end=at + len(text), sha256=hashlib.sha256(text).hexdigest())
                at = now.end
                yield text[:-1], now
    except FileNotFoundError:
        if mark.end:
            raise RewrittenError(f"{path} is gone") from None
    except OSError as fault:
        raise StorageError(f"{path} cannot be read ({fault.strerror}); mend its permissions") from None


class RoundFigures(NamedTuple):
    """One round: number of silos used, seconds, bytes of models to and from all of them."""

    round: int
    silos: int
    seconds: float
    down: int
    up: int


class Point(NamedTuple):
    """A metric after a round: mean over silos, and its 95 % interval, None for fewer than two silos."""

    round: int
    mean: float
    low: float | None
    high: float | None


class Decision(NamedTuple):
    """An admission decision, or a rejected node: ``silo`` as the audit log names it."""

    time: str
    round: int | None
    silo: str
    admitted: bool
    norm: float | None
    limit: float | None
    reason: str


@dataclass
class RecordedRun:
    """The events of a run.

    Attributes:
        names: of the silos, by place.
        metric: the run's, as the record names it.
        headline: the headline model and moment.
        rounds: the last ones.
        down, up: bytes of models by place, over all rounds.
        curves: points by model, moment and split.
    """

    names: list[str] = field(default_factory=list)
    metric: str = ""
    headline: tuple[str, str] = ("", "")
    rounds: deque[RoundFigures] = field(default_factory=lambda: deque(maxlen=RECENT))
    down: Counter[int] = field(default_factory=Counter)
    up: Counter[int] = field(default_factory=Counter)
    curves: dict[Key, list[Point]] = field(default_factory=lambda: defaultdict(list))

    def take(self, line: bytes) -> None:
        """Add one event; an unreadable one is skipped."""
        try:
            event = events.read(line)
        except ValueError:
            return
        match event["event"]:
            case "start":
                self.names, self.headline = event["clients"], (event["headline"][0], event["headline"][1])
                self.metric = event.get("metric", "")
            case "round":
                self.down.update(dict(zip(event["cohort"], event["bytes_down"], strict=True)))
                self.up.update(dict(zip(event["cohort"], event["bytes_up"], strict=True)))
                bytes_ = sum(event["bytes_down"]), sum(event["bytes_up"])
                self.rounds.append(RoundFigures(event["round"], len(event["cohort"]), event["seconds"], *bytes_))
            case "evaluation":
                known = {k: event[k] for k in Evaluation.__dataclass_fields__ if k in event}
                row: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in known.items()}
                self._evaluated(Evaluation(**row))

    def _evaluated(self, one: Evaluation) -> None:
        summary = summarize(one.value, one.samples, metric=one.judged)
        if summary["mean"] is not None and math.isfinite(summary["mean"]):
            low, high = summary["interval"] or (math.nan, math.nan)
            known = math.isfinite(low) and math.isfinite(high)
            self.curves[one.key].append(Point(one.round, summary["mean"], *((low, high) if known else (None, None))))


@dataclass
class JudgedStudy:
    """One study in the audit log.

    Attributes:
        decisions: the last admitted or refused uplinks, and rejected nodes.
        admitted, refused: uplinks by silo.
        committed: time of the last round, in ISO 8601.
    """

    decisions: deque[Decision] = field(default_factory=lambda: deque(maxlen=RECENT))
    admitted: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    committed: str = ""


@dataclass
class AuditedServer:
    """A server's audit log, which all its studies share.

    Attributes:
        seen: by silo, the time of its last message signed with its key, in ISO 8601.
        lost: processes that had to be restarted, by name.
        studies: by name, "" for the one that the kit came with.
    """

    seen: dict[str, str] = field(default_factory=dict)
    lost: Counter[str] = field(default_factory=Counter)
    studies: dict[str, JudgedStudy] = field(default_factory=lambda: defaultdict(JudgedStudy))
    _study: str = ""  # the study whose lines follow

    def take(self, line: bytes) -> None:
        """Add one line; a piece cut short by a kill is skipped."""
        fields = parsed(line)
        if fields is None:
            return
        event, when, silo = (plain(str(fields.get(key, ""))) for key in ("event", "time", "silo"))
        if event == "start":
            self._study = plain(str(fields.get("study", "")))
        elif event in SPOKE:
            self.seen[silo] = when
        elif event == "lost":
            self.lost[plain(str(fields.get("process")), 40)] += 1
        else:
            self._judged(self.studies[self._study], event, when, silo, fields)

    def _judged(self, study: JudgedStudy, event: str, when: str, silo: str, fields: dict[str, Any]) -> None:
        if event == "round":
            study.committed = when
        elif event == "admission":
            (study.admitted if fields.get("admitted") is True else study.refused)[silo] += 1
            study.decisions.append(_decision(when, silo, fields))
        elif event == "refused" and "round" not in fields:  # also reported as an admission in its round
            study.decisions.append(_decision(when, silo, fields))


def _decision(when: str, silo: str, fields: dict[str, Any]) -> Decision:
    number, norms, limits = fields.get("round"), fields.get("norms"), fields.get("limits")
    reason, admitted = plain(str(fields.get("reason", ""))), fields.get("admitted") is True
    round_ = number if isinstance(number, int) else None
    return Decision(when, round_, silo, admitted, _largest(norms), _largest(limits), reason)


def _largest(values: Any) -> float | None:
    known = [v for v in values.values() if isinstance(v, int | float)] if isinstance(values, dict) else []
    return max(known, default=None)


T = TypeVar("T", RecordedRun, AuditedServer)


@dataclass
class Followed(Generic[T]):
    """A growing file of lines and the content read so far: ``look`` adds new lines.

    Args:
        path: of the file.
        begin: makes the content before the first line.
    """

    path: Path
    begin: type[T]
    _mark: Mark = field(default_factory=Mark)
    _known: T | None = None

    def look(self) -> T:
        """The current content; a rewritten file, as after a resume, is read again. Raises StorageError."""
        if self._known is None:
            self._known = self.begin()
        try:
            self._read(self._known)
        except RewrittenError:
            self._known, self._mark = self.begin(), Mark()
            self._read(self._known)
        return self._known

    def _read(self, known: T) -> None:
        before = None
        while self._mark != before:
            before = self._mark
            for line, now in lines_after(self.path, self._mark):
                known.take(line)
                self._mark = now
