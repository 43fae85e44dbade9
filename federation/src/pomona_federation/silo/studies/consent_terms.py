"""Terms of a consent by rule: limits that each task of a study accepted by ``policy.toml`` must keep."""

from datetime import UTC, date, datetime, time
from typing import Annotated, Self

from pydantic import Field, model_validator

from pomona.core.bounds import PLACES
from pomona.core.errors import ProtocolError
from pomona.core.settings import Settings

CLOCK = "(([01][0-9]|2[0-3]):[0-5][0-9])"
Hours = Annotated[str, Field(pattern=f"^({CLOCK}-{CLOCK})?$")]


class ConsentTerms(Settings):
    """Terms kept in a study's ``study.json``, so that a later ``policy.toml`` does not change them."""

    members: int = Field(
        1, ge=1, le=PLACES, description="least silos with samples, as the server counts them, this one included"
    )
    accept_epsilon_total: float | None = Field(
        None, gt=0, description="as of silo.toml: most that all studies on the same data may cost together"
    )
    accept_delta_total: float | None = Field(
        None, gt=0, lt=1, description="as of silo.toml: most that their deltas may add up to"
    )
    not_before: date | None = Field(None, description="first day on which this silo works")
    not_after: date | None = Field(None, description="last day on which this silo works, and on which it accepts")
    hours: Hours = Field("", description="when it works, in its local time, as 20:00-06:00; at any time if empty")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.not_before and self.not_after and self.not_after < self.not_before:
            raise ValueError("not_after comes before not_before; correct one of them")
        return self

    def require_time(self, now: datetime) -> None:
        """Raise ProtocolError outside this silo's working days and hours."""
        today = now.date()
        if self.not_before and today < self.not_before:
            raise ProtocolError(f"this silo works for this study from {self.not_before} on")
        if self.not_after and today > self.not_after:
            raise ProtocolError(f"this silo worked for this study until {self.not_after}")
        if self.hours and not self._open(now.time()):
            raise ProtocolError(f"this silo works for this study at {self.hours} of its local time")

    def require_members(self, count: int) -> None:
        """Raise ProtocolError for too few members; ``count``: members with samples."""
        if count < self.members:
            raise ProtocolError(f"a task with {count} members, this silo works with {self.members} or more")

    def _open(self, clock: time) -> bool:
        """Whether a time is within the hours, which may pass midnight; equal ends mean the whole day."""
        first, last = (time.fromisoformat(text) for text in self.hours.split("-"))
        return first <= clock < last if first < last else clock >= first or clock < last


def local_now() -> datetime:
    """The local time of this machine's clock."""
    return datetime.now(UTC).astimezone()
