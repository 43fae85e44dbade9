"""A silo's privacy budget over all studies, ``state/private/budget.json``: the cost and data of
each run.

Noise keys and ledgers stay with their studies. The worst-case cost of a run is reserved here before
its first task: once for a run and its data, and again if its administrator starts the study anew.
A data set's total is the sum over the reservations that share any of its sources, by basic
composition: epsilons add up, and so do deltas.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from pomona.core.bounds import Finite, Line, Sha256
from pomona.core.errors import PrivacyError
from pomona.core.files import writing
from pomona.core.settings import LARGEST, Settings
from pomona.data.settings import DataSettings
from pomona.privacy.accounting import ROUNDING
from pomona.storage.lock import waiting_lock
from pomona_federation.audit_log import complete_lines, write_line
from pomona_federation.json_store import read_sealed, write_sealed
from pomona_federation.messages.message_bodies import Token
from pomona_federation.silo.settings import (
    MOST_SOURCES,
    DataSource,
    hashed,
    shared,
    sources,
    with_names,
)
from pomona_federation.supervision.process_logs import clock

FOLDER, FILE = "private", "budget.json"
RESERVED = "reserved"  # the event in the silo's audit log
MAX_RESERVATIONS = 10_000  # most reservations
UNKNOWN = "unknown, before a restore"

Loss = Annotated[Finite, Field(ge=0)] | None  # None: unbounded


@dataclass(frozen=True)
class Cost:
    """A privacy loss: epsilon, which is infinite without noise, at delta."""

    epsilon: float = 0.0
    delta: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.epsilon + other.epsilon, min(1.0, self.delta + other.delta))

    def __str__(self) -> str:
        if math.isfinite(self.epsilon):
            return f"epsilon {self.epsilon:.3g} at delta {self.delta:g}"
        return "without bound"


@dataclass(frozen=True)
class TotalLimit:
    """The largest total cost of all runs on the same data; None for any."""

    epsilon: float | None = None
    delta: float | None = None

    def require(self, total: Cost, study: str) -> None:
        """Raise PrivacyError for a total above the limit; ``study``: the study that exceeds it."""
        for name, cost, limit in (
            ("epsilon", total.epsilon, self.epsilon),
            ("delta", total.delta, self.delta),
        ):
            if limit is not None and cost > limit * (1 + ROUNDING):
                raise PrivacyError(
                    f"with study {study} all on this data may cost {total} together; "
                    f"accept_{name}_total is {limit:g}: do not take part, or raise it"
                )


@dataclass(frozen=True)
class Claim:
    """The request of a run.

    Attributes:
        study: its name.
        agreement, run: the agreement's hash, and the run's id; None for any, when nothing is
            reserved.
        worst: computes the worst-case cost; called only if that is not known yet.
        against: whom the cost is a bound against, if the noise of other silos counts in it; else
            "".
    """

    study: str
    agreement: str
    run: str | None
    worst: Callable[[], Cost]
    against: str = ""


class Reservation(Settings):
    """The worst-case cost of one run on some data; an epsilon of None is unbounded.

    ``spent``: the epsilon in the study's ledger after the run's last task, for all the study's runs
    together. ``against``: as the claim's. ``data``: empty for what was spent after a backup by
    unknown runs, which counts on all data.
    """

    study: Line
    agreement: Sha256
    run: Token
    epsilon: Loss
    delta: Annotated[Finite, Field(ge=0, le=1)]
    spent: Loss = 0.0
    against: Line = ""
    when: Line
    data: Annotated[tuple[DataSource, ...], Field(max_length=MOST_SOURCES)]

    @property
    def cost(self) -> Cost:
        """The reserved cost."""
        return Cost(math.inf if self.epsilon is None else self.epsilon, self.delta)

    def applies_to(self, data: tuple[DataSource, ...]) -> bool:
        """Whether it counts on some data, empty for any."""
        return not self.data or not data or shared(self.data, data)

    def covers(self, claim: Claim, locations: set[str]) -> bool:
        """Whether it was made for this run and all of these places; their contents may have changed
        since.
        """
        mine = {source.place for source in self.data}
        return (
            self.agreement == claim.agreement
            and claim.run in {None, self.run}
            and locations <= mine
        )


class BudgetFile(Settings):
    """All reservations, oldest first."""

    reservations: Annotated[tuple[Reservation, ...], Field(max_length=MAX_RESERVATIONS)] = ()


@dataclass(frozen=True)
class PrivacyBudget:
    """The budget in a silo's kit.

    Every method raises StorageError for a file that cannot be read or written.
    """

    kit: Path

    @property
    def reservations(self) -> tuple[Reservation, ...]:
        """All of them, oldest first.

        Raises PrivacyError if the file recorded in the audit log is gone.
        """
        if budget := read_sealed(BudgetFile, self._path):
            return budget.reservations
        log = self.kit / "state" / "audit.jsonl"
        if log.exists() and any(line.get("event") == RESERVED for line in complete_lines(log)):
            raise PrivacyError(
                f"{self._path} is missing, but the audit log has reservations; what was spent is "
                "unknown: restore it"
            )
        return ()

    def total(self, data: DataSettings) -> Cost:
        """Total cost of all runs that share a source with some data."""
        return _sum(self._overlapping(hashed(sources(data))))

    def total_with(self, claim: Claim, data: DataSettings) -> Cost:
        """The same total with a claim, counted once."""
        if reservation := self._reservation(claim, data):
            return _sum(self._overlapping(reservation.data))
        return self.total(data) + claim.worst()

    def runs(self, agreement: str, excluded: str | None = None) -> dict[str, float]:
        """Reserved epsilon of each run of a study, except one; a run that read several data sets
        counts once.
        """
        runs: dict[str, float] = {}
        for reservation in self.reservations:
            if reservation.agreement == agreement and reservation.run != excluded:
                runs[reservation.run] = max(
                    reservation.cost.epsilon, runs.get(reservation.run, 0.0)
                )
        return runs

    def require(self, claim: Claim, data: DataSettings, limit: TotalLimit) -> None:
        """Raise PrivacyError if a claim would take the total of its data above the limit; nothing
        is written.
        """
        if limit != TotalLimit():
            limit.require(self.total_with(claim, data), claim.study)

    def reserve(self, claim: Claim, data: DataSettings, limit: TotalLimit) -> None:
        """Reserve the worst-case cost of a run, once.

        Raises PrivacyError as ``require``, and then reserves nothing.

        Args:
            claim: of the run.
            data: that it reads.
            limit: limit for the total of all runs on this data.
        """
        with writing(self._path), self._lock():
            self.require(claim, data, limit)
            existing = self.reservations
            if self._reservation(claim, data):
                return
            if len(existing) == MAX_RESERVATIONS:
                raise PrivacyError(
                    f"{self._path} has {MAX_RESERVATIONS} reservations, the most it can hold; "
                    "start a new federation"
                )
            current = hashed(sources(data))
            updated = tuple(
                r.model_copy(update={"data": with_names(r.data, current)}) for r in existing
            )
            self._enter(updated, claim, claim.worst(), current)

    def enter_unknown(self, token: str, cost: Cost) -> None:
        """Enter the cost of unknown runs after a backup, on unknown data, by the restore's token.

        It is in no ledger, so it counts as spent for good.
        """
        if not cost.epsilon and not cost.delta:
            return
        claim = Claim(UNKNOWN, hashlib.sha256(token.encode()).hexdigest(), token, lambda: cost)
        with writing(self._path), self._lock():
            self._enter(self.reservations, claim, cost, ())

    @property
    def unknown(self) -> Cost:
        """Total spent after backups by runs unknown to them; any study may have spent it."""
        return _sum(r for r in self.reservations if not r.data)

    def _enter(
        self,
        existing: tuple[Reservation, ...],
        claim: Claim,
        cost: Cost,
        data: tuple[DataSource, ...],
    ) -> None:
        """Add a reservation, also to the audit log; one for no particular data counts as spent."""
        if not existing:
            self._write(())  # even an empty file is written before the audit log mentions it
        epsilon = _finite(cost.epsilon)
        reservation = Reservation(
            study=claim.study,
            agreement=claim.agreement,
            run=claim.run,
            epsilon=epsilon,
            delta=cost.delta,
            spent=0.0 if data else epsilon,
            against=claim.against,
            when=clock(),
            data=data,
        )
        logged = reservation.model_dump(mode="json", exclude={"spent", "when", "data"})
        write_line(self.kit / "state", RESERVED, **logged)
        self._write((*existing, reservation))

    def note_spent(self, agreement: str, run: str, epsilon: float) -> None:
        """Record the epsilon in the study's ledger after a task of a run."""
        with writing(self._path), self._lock():
            self._write(
                r.model_copy(update={"spent": _finite(epsilon)})
                if (r.agreement, r.run) == (agreement, run)
                else r
                for r in self.reservations
            )

    def require_ledger(self, agreement: str, epsilon: float) -> None:
        """Raise PrivacyError for less than the epsilon recorded after a study's tasks in its
        ledger, which was replaced then; other versions may compute it up to 1 % smaller.
        """
        epsilons = [r.spent for r in self.reservations if r.agreement == agreement]
        spent = max((math.inf if e is None else e for e in epsilons), default=0.0)
        if epsilon < 0.99 * spent:
            raise PrivacyError(
                f"the study's privacy ledger has epsilon {epsilon:.3g}, but {spent:.3g} was spent: "
                "it was replaced or rolled back; restore it from the newest backup"
            )

    def _reservation(self, claim: Claim, data: DataSettings) -> Reservation | None:
        """The reservation made for a claim."""
        locations = {source.place for source in sources(data)}
        return next((r for r in self.reservations if r.covers(claim, locations)), None)

    def _overlapping(self, data: tuple[DataSource, ...]) -> list[Reservation]:
        """Reservations whose data overlap with ``data``."""
        return [r for r in self.reservations if r.applies_to(data)]

    def _write(self, reservations: Iterable[Reservation]) -> None:
        write_sealed(self._path, BudgetFile(reservations=tuple(reservations)))

    @property
    def _path(self) -> Path:
        return self.kit / "state" / FOLDER / FILE

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Hold the file's lock, as several messages may be answered at a time."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with waiting_lock(self._path.with_name(".budget.lock")):
            yield


def overview(kit: Path) -> list[dict[str, Any]]:
    """A row for each reservation, oldest first; a study without noise is unbounded.

    Raises as ``PrivacyBudget.reservations``.
    """
    reservations = PrivacyBudget(kit).reservations
    return [
        {
            "study": r.study,
            "hash": r.agreement[:16],
            "epsilon_at_most": r.epsilon,
            "spent": None if r.epsilon is None else r.spent,
            "delta": r.delta,
            "against": r.against,
            "all_on_its_data": _finite(
                _sum(overlap for overlap in reservations if overlap.applies_to(r.data)).epsilon
            ),
            "since": r.when,
        }
        for r in reservations
    ]


def _sum(reservations: Iterable[Reservation]) -> Cost:
    """The sum over studies; if a repeated round raised a study's ledger above its reservation, the
    ledger counts.
    """
    studies: dict[str, tuple[Cost, float]] = {}
    for r in reservations:
        cost, spent = studies.get(r.agreement, (Cost(), 0.0))
        studies[r.agreement] = cost + r.cost, max(spent, math.inf if r.spent is None else r.spent)
    costs = (Cost(max(cost.epsilon, spent), cost.delta) for cost, spent in studies.values())
    return sum(costs, Cost())


def _finite(epsilon: float) -> float | None:
    return epsilon if epsilon <= LARGEST else None
