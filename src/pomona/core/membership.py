"""Membership schedule: clients that join late, leave early, or never train.

A client that is not a member has 0 samples in the roster, so its weight is 0 everywhere. The
method's card describes what joining and leaving do to the method's own quantities.
"""

from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import Field, field_serializer, model_validator

from pomona.core.bounds import ClientId, Number
from pomona.core.errors import ConfigError
from pomona.core.round import Roster
from pomona.core.settings import Settings

Rounds = Annotated[  # Pydantic's own schema says nothing of keys
    dict[ClientId, Number], Field(json_schema_extra={"propertyNames": {"pattern": "^[0-9]+$"}})
]


class Membership(Settings):
    """Clients that join or leave.

    All other clients are members from the first round to the last.

    Attributes:
        joins: client -> the first round it takes part in
        leaves: client -> the last round it takes part in
        unseen: clients never trained with; they get a personal model at the end, and nothing that
            members learn (moments, categories, words, units) comes from their rows
        adapt_rounds: rounds an unseen client trains while the federation is frozen; one if the
            method keeps no state between rounds
    """

    joins: Rounds = Field({})
    leaves: Rounds = Field({})
    unseen: tuple[ClientId, ...] = ()
    adapt_rounds: int = Field(10, ge=1, le=10**6)

    @field_serializer("joins", "leaves")
    def _text_keys(self, rounds: dict[int, int]) -> dict[str, int]:
        return {str(client): round_ for client, round_ in rounds.items()}  # TOML keys are text

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        for client, first in self.joins.items():
            if first > self.leaves.get(client, first):
                raise ValueError(
                    f"client {client} joins in round {first} after its last, {self.leaves[client]}"
                )
        contradictory = sorted(set(self.unseen) & (set(self.joins) | set(self.leaves)))
        if contradictory:
            raise ValueError(f"client {contradictory[0]} is unseen, so it cannot join or leave")
        return self

    def idle(self) -> dict[str, str]:
        """Only clients that are never trained with adapt."""
        if self.unseen:
            return {}
        return {"adapt_rounds": "only for clients of membership.unseen, and none is named"}

    @property
    def changes(self) -> bool:
        """Return whether any client joins or leaves."""
        return bool(self.joins or self.leaves or self.unseen)

    def check(self, clients: int, rounds: int) -> None:
        """Raise ConfigError for unknown clients or rounds, or for a round without members."""
        for key in ("joins", "leaves", "unseen"):
            unknown = [c for c in getattr(self, key) if not 0 <= c < clients]
            if unknown:
                raise ConfigError(
                    f"membership.{key} names client {unknown[0]}, but ids go from 0 to "
                    f"{clients - 1}"
                )
        for key in ("joins", "leaves"):
            invalid = [r for r in getattr(self, key).values() if not 1 <= r <= rounds]
            if invalid:
                raise ConfigError(
                    f"membership.{key} names round {invalid[0]}, but there are rounds 1 to {rounds}"
                )
        for number in self._lowest(rounds):
            if not self.members(clients, number):
                raise ConfigError(
                    f"membership: no clients left in round {number}; keep at least one"
                )

    def fewest(self, clients: int, rounds: int) -> int:
        """Return the smallest number of members in any round."""
        return min(len(self.members(clients, number)) for number in self._lowest(rounds))

    def _lowest(self, rounds: int) -> list[int]:
        """Return the rounds one of which has the fewest members: 1, and those after a leave."""
        return sorted({1, *(last + 1 for last in self.leaves.values() if last < rounds)})

    def members(self, clients: int, number: int) -> tuple[int, ...]:
        """Return the members in round ``number``, in ascending order."""
        return tuple(i for i in range(clients) if self.is_member(i, number, number))

    def is_member(self, client: int, first: int, last: int) -> bool:
        """Return whether a client is a member in any of these rounds."""
        joined, left = self.joins.get(client, 1), self.leaves.get(client, last)
        return client not in self.unseen and max(first, joined) <= min(last, left)

    def roster(self, all_clients: Roster, number: int) -> Roster:
        """Return the roster of round ``number``."""
        if not self.changes:
            return all_clients
        return all_clients.only(self.members(len(all_clients), number))


@dataclass(frozen=True)
class PlannedMembership:
    """The membership schedule of a run's settings; ``all_clients`` has all clients that are ever
    members, or unseen.
    """

    membership: Membership
    all_clients: Roster

    def roster(self, number: int, guest: int | None = None) -> Roster:
        """Return the roster of round ``number``, including the guest client if given."""
        roster = self.membership.roster(self.all_clients, number)
        return roster if guest is None else roster.plus(guest, self.all_clients)

    def members_until(self, number: int) -> tuple[int, ...]:
        """Return the clients that have been members in any round up to ``number``."""
        joins, unseen = self.membership.joins, self.membership.unseen
        return tuple(
            i for i in range(len(self.all_clients)) if i not in unseen and joins.get(i, 1) <= number
        )

    def has_leavers(self, number: int) -> bool:
        """Return whether round ``number`` is a client's last."""
        return number in self.membership.leaves.values()
