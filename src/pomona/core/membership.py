"""Schedule of members: clients that join late, leave, or are never trained with.

A client that is no member has no samples on the roster, so its share in every weight is 0. What joining and leaving
does to a method's own numbers stands on the method's card.
"""

from dataclasses import dataclass
from typing import Self

from pydantic import Field, field_serializer, model_validator

from pomona.core.bounds import Number, Place
from pomona.core.errors import ConfigError
from pomona.core.round import Roster
from pomona.core.settings import Settings, refuse_idle


class Membership(Settings):
    """Clients that come and go. Everybody not named is a member from the first round to the last."""

    joins: dict[Place, Number] = Field({}, description="client -> the first round it takes part in")
    leaves: dict[Place, Number] = Field({}, description="client -> the last round it takes part in")
    unseen: tuple[Place, ...] = Field(
        (), description="clients never trained with; they get a personal model at the end"
    )
    adapt_rounds: int = Field(
        10,
        ge=1,
        le=10**6,
        description="rounds an unseen client trains, the federation standing still; one where it carries nothing on",
    )

    @field_serializer("joins", "leaves")
    def _named(self, rounds: dict[int, int]) -> dict[str, int]:
        return {str(client): round_ for client, round_ in rounds.items()}  # TOML's keys are text

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        for client, first in self.joins.items():
            if first > self.leaves.get(client, first):
                raise ValueError(f"client {client} joins in round {first} after its last, {self.leaves[client]}")
        twice = sorted(set(self.unseen) & (set(self.joins) | set(self.leaves)))
        if twice:
            raise ValueError(f"client {twice[0]} is unseen, so it neither joins nor leaves")
        if not self.unseen:
            refuse_idle(
                self, "membership.", ("adapt_rounds",), "is for clients of membership.unseen, and none is named"
            )
        return self

    @property
    def changes(self) -> bool:
        """Whether anybody comes or goes."""
        return bool(self.joins or self.leaves or self.unseen)

    def check(self, clients: int, rounds: int) -> None:
        """Raise ConfigError for clients or rounds that there are not, and for a round without members."""
        for key in ("joins", "leaves", "unseen"):
            unknown = [c for c in getattr(self, key) if not 0 <= c < clients]
            if unknown:
                raise ConfigError(f"membership.{key} names client {unknown[0]}, but ids go from 0 to {clients - 1}")
        for key in ("joins", "leaves"):
            never = [r for r in getattr(self, key).values() if not 1 <= r <= rounds]
            if never:
                raise ConfigError(f"membership.{key} names round {never[0]}, but there are rounds 1 to {rounds}")
        for number in range(1, rounds + 1):
            if not self.members(clients, number):
                raise ConfigError(f"membership: no clients left in round {number}; keep at least one")

    def members(self, clients: int, number: int) -> tuple[int, ...]:
        """The members in round ``number``, ascending."""
        return tuple(
            i
            for i in range(clients)
            if i not in self.unseen and self.joins.get(i, 1) <= number <= self.leaves.get(i, number)
        )

    def roster(self, everybody: Roster, number: int) -> Roster:
        """The roster of round ``number``."""
        return everybody.only(self.members(len(everybody), number))


@dataclass(frozen=True)
class Planned:
    """Attendance as a run's settings say it from the start; ``everybody`` has all that are ever members, or unseen."""

    membership: Membership
    everybody: Roster

    def roster(self, number: int, guest: int | None = None) -> Roster:
        """The roster of round ``number``, with one client more where a guest is named."""
        roster = self.membership.roster(self.everybody, number)
        return roster if guest is None else roster.plus(guest, self.everybody)

    def begun(self, number: int) -> tuple[int, ...]:
        """The clients that have been members in any round up to ``number``."""
        joins, unseen = self.membership.joins, self.membership.unseen
        return tuple(i for i in range(len(self.everybody)) if i not in unseen and joins.get(i, 1) <= number)

    def parting(self, number: int) -> bool:
        """Whether round ``number`` is somebody's last."""
        return number in self.membership.leaves.values()
