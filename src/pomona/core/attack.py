"""Clients that lie, in a simulation: who, how, from which round on."""

from collections.abc import Sequence
from math import isnan
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from pomona.core.bounds import ROUNDS, ClientId
from pomona.core.errors import ConfigError
from pomona.core.membership import Membership
from pomona.core.settings import Settings

DATA = ("labels", "backdoor")
"""Kinds that change the liars' training data; they train honestly on these."""
USUAL = {
    "scale": 10.0,
    "sign": 1.0,
    "noise": 1.0,
    "collude": 1.5,
    "counts": 10.0,
    "labels": 1.0,
    "backdoor": 0.5,
}
"""Strengths that are not set; kinds without one are not listed."""


AttackKind = Literal[
    "scale", "sign", "noise", "collude", "free-rider", "nan", "counts", "labels", "backdoor"
]


def _nan_as_text(value: Any) -> Any:
    """Return a kind as text: on the command line TOML reads nan as a number."""
    return "nan" if isinstance(value, float) and isnan(value) else value


class Attack(Settings):
    """Clients that send or train on what is false; all others are honest.

    ``federation.liars`` and ``partition.poison`` have the definition of each kind.

    Attributes:
        clients: the attacking clients
        kind: what an attacker sends: the change times the strength (scale), or times minus the
            strength (sign); a random direction of the strength times its length (noise); the honest
            clients' mean change minus the strength times its deviation, the same from all attackers
            (collude); what it received (free-rider); NaN (nan); its number of samples times the
            strength (counts). Or how it falsifies the share strength of its training samples: other
            labels (labels), a trigger with the first class (backdoor)
        from_round: first round of the attack; data and counts are false from round 1
    """

    clients: tuple[ClientId, ...] = Field(min_length=1)
    kind: Annotated[AttackKind, BeforeValidator(_nan_as_text)]
    strength: float = Field(
        default_factory=lambda known: USUAL.get(known.get("kind", ""), 1.0),
        gt=0,
        le=1e6,
        description="how much, by kind; if not set "
        + ", ".join(f"{kind} {value:g}" for kind, value in USUAL.items()),
    )
    from_round: int = Field(1, ge=1, le=ROUNDS)

    def idle(self) -> dict[str, str]:
        """Data and counts are false from the start; no kind without numbers has a strength."""
        early = self.kind in (*DATA, "counts")
        return ({"from_round": f"{self.kind} is from round 1 on"} if early else {}) | (
            {} if self.kind in USUAL else {"strength": f"{self.kind} has none"}
        )

    @property
    def description(self) -> str:
        """The lie in a few words."""
        strength = f", strength {self.strength:g}" if self.kind in USUAL else ""
        late = f", from round {self.from_round}" if self.from_round > 1 else ""
        return f"{self.kind}{strength}{late}"

    def check(self, clients: int, rounds: int, membership: Membership) -> None:
        """Raise ConfigError for unknown clients, none that is honest, one that takes part in no
        round of the attack, or a share above 1.
        """
        if unknown := [i for i in self.clients if i >= clients]:
            raise ConfigError(
                f"attack.clients names client {unknown[0]}, but ids go from 0 to {clients - 1}"
            )
        if len(set(self.clients)) == clients:
            raise ConfigError("attack.clients names all clients; leave one that is honest")
        late = [i for i in self.clients if not membership.is_member(i, self.from_round, rounds)]
        if late:
            raise ConfigError(
                f"attack.clients names client {late[0]}, no member from attack.from_round = "
                f"{self.from_round} to the last round, {rounds}; lower it, or name another client"
            )
        if self.kind in DATA and self.strength > 1:
            raise ConfigError(
                f"attack.strength = {self.strength:g}: for {self.kind} it is a share of the "
                "liars' training samples; give at most 1"
            )

    def claimed(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Return the numbers of samples that clients with these numbers claim."""
        if self.kind != "counts":
            return tuple(sizes)
        return tuple(
            max(1, round(n * self.strength)) if n and i in self.clients else n
            for i, n in enumerate(sizes)
        )

    def honest(self, clients: int) -> tuple[int, ...]:
        """Return the clients that do not lie, ascending."""
        return tuple(i for i in range(clients) if i not in self.clients)
