"""Consent rules, ``policy.toml`` in a silo's kit, and the line that shows which rules are in
force.
"""

from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pomona.core.bounds import MAX_CLIENTS, ROUNDS, Finite, NameOrNone, Sha256
from pomona.core.errors import ConfigError, ProtocolError
from pomona.core.files import reading, sha256
from pomona.core.settings import Settings
from pomona.core.toml import named_file, read_file, validated
from pomona_federation.study import DAY, StudyKind

CLOCK = "(([01][0-9]|2[0-3]):[0-5][0-9])"
Hours = Annotated[str, Field(pattern=f"^({CLOCK}-{CLOCK})?$")]


class ConsentTerms(Settings):
    """Terms kept in a study's ``study.json``, so that a later ``policy.toml`` does not change
    them.

    Attributes:
        members: smallest number of silos with samples, with this one, by the server's count
        accept_epsilon_total: as in silo.toml
        accept_delta_total: as in silo.toml
        not_before: first day on which the silo works
        not_after: last day on which the silo works and accepts
        hours: hours in which it works, local time, such as 20:00-06:00; always if empty
    """

    members: int = Field(1, ge=1, le=MAX_CLIENTS)
    accept_epsilon_total: float | None = Field(None, gt=0)
    accept_delta_total: float | None = Field(None, gt=0, lt=1)
    not_before: date | None = None
    not_after: date | None = None
    hours: Hours = ""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.not_before and self.not_after and self.not_after < self.not_before:
            raise ValueError("not_after comes before not_before; correct one of them")
        return self

    def require_time(self, clock: datetime) -> None:
        """Raise ProtocolError outside this silo's working days and hours."""
        today = clock.date()
        if self.not_before and today < self.not_before:
            raise ProtocolError(f"this silo works for this study from {self.not_before} on")
        if self.not_after and today > self.not_after:
            raise ProtocolError(f"this silo worked for this study until {self.not_after}")
        if self.hours and not self._open(clock.time()):
            raise ProtocolError(f"this silo works for this study at {self.hours} of its local time")

    def require_members(self, count: int) -> None:
        """Raise ProtocolError for too few members; ``count``: members with samples."""
        if count < self.members:
            raise ProtocolError(
                f"a task with {count} members; this silo requires at least {self.members}"
            )

    def _open(self, clock: time) -> bool:
        """Whether a time is within the hours, which may pass midnight; equal ends mean the whole
        day.
        """
        first, last = (time.fromisoformat(text) for text in self.hours.split("-"))
        return first <= clock < last if first < last else clock >= first or clock < last


def local_now() -> datetime:
    """The local time of this machine's clock."""
    return datetime.now(UTC).astimezone()


FILE = "policy.toml"
Megabytes = Annotated[Finite, Field(gt=0)]
LONGEST = 366 * DAY  # seconds
ShortText = Annotated[str, Field(min_length=1, max_length=200)]


class ConsentPolicy(ConsentTerms):
    """Rules that a study must all fit to be accepted; an unset rule without a default fits every
    study.

    Attributes:
        kinds: allowed kinds of studies
        methods: allowed methods; any if empty
        models: allowed networks; any if empty
        files: SHA-256 of allowed initial weights and files of own code; none if empty
        tasks: SHA-256 of allowed sections [task], in addition to those that a person has accepted
            on the same data
        acknowledge: allowed releases past the noise, as in [run.privacy]; none if empty
        views: views that a study may ask for, "" for [data]; any if empty
        least_count: fewest rows that a survey may report together
        least_in_a_sum: fewest silos over which secure aggregation sums, for studies that send this
            silo's models; a study without it does not fit
        rounds: largest number of rounds
        studies: largest number of studies accepted by rules, with their folders in state/studies;
            further ones are not accepted
        epochs_in_all: largest number of passes over the training data in a whole study
        deadline: longest deadline of a round in a study's text, in seconds; this silo's work on a
            message ends only with the lifetime that the server sets, up to 30 days
        mb_a_round: largest traffic of models in a round, both ways
        mb_in_all: largest traffic of models in a study, both ways
        otherwise: what happens to other studies: they wait for a person (ask), or are declined if
            their text alone breaks a rule
    """

    kinds: tuple[StudyKind, ...] = Field(min_length=1, max_length=20)
    methods: tuple[ShortText, ...] = Field((), max_length=1000)
    models: tuple[ShortText, ...] = Field((), max_length=1000)
    files: tuple[Sha256, ...] = Field((), max_length=10_000)
    tasks: tuple[Sha256, ...] = Field((), max_length=1000)
    acknowledge: tuple[ShortText, ...] = Field((), max_length=1000)
    views: tuple[NameOrNone, ...] = Field((), max_length=1000)
    least_count: int = Field(10, ge=3, le=10**6)
    least_in_a_sum: int | None = Field(None, ge=2, le=MAX_CLIENTS)
    rounds: int | None = Field(None, ge=1, lt=ROUNDS)
    studies: int = Field(100, ge=1, le=10**4)
    epochs_in_all: int = Field(10_000, ge=1, le=10**12)
    deadline: float = Field(DAY, gt=0, le=LONGEST)
    mb_a_round: Megabytes | None = None
    mb_in_all: Megabytes | None = None
    otherwise: Literal["ask", "decline"] = "ask"

    @classmethod
    def load(cls, kit: Path) -> "ConsentPolicy | None":
        """The ``policy.toml`` of a kit, if it has one.

        Raises ConfigError naming the file and every bad key.
        """
        path = kit / FILE
        if not path.exists():
            return None
        tree = read_file(path)
        with named_file(path):
            return validated(cls, tree)

    @property
    def terms(self) -> ConsentTerms:
        """The terms that bind an accepted study."""
        return ConsentTerms(**{name: getattr(self, name) for name in ConsentTerms.model_fields})


def policy_sha256(kit: Path) -> str | None:
    """SHA-256 in hex of a kit's ``policy.toml``; None without one. Raises ConfigError."""
    path = kit / FILE
    with reading(path, "make it a plain file of this account", ConfigError):
        return sha256(path) if path.exists() else None
