"""Settings of who takes part: clients, their rounds, and what bounds one client's influence."""

from pydantic import Field

from pomona.core.attack import Attack
from pomona.core.membership import Membership
from pomona.core.settings import Settings
from pomona.core.training_settings import SecureAggregation


class CohortSettings(Settings):
    """Who takes part in which round.

    Attributes:
        clients: number of clients; the data's own number if they name clients
        participation: share of the clients in a round, drawn uniformly
        absence: probability that a client drawn for a round is absent, independently; at least
            one stays
        largest_share: largest weight of one client in a mean; 1: no limit
        secure_aggregation: the server learns only the mean of a round's models, in fixed point; a
            simulation computes the same numbers, without masks
        membership: clients that join late, leave, or are never trained with
        attack: clients that attack the training; in simulations only, a federation refuses it
    """

    clients: int = Field(12, ge=1, le=10**4)
    participation: float = Field(1.0, gt=0, le=1)
    absence: float = Field(0.0, ge=0, lt=1)
    largest_share: float = Field(1.0, gt=0, le=1)
    secure_aggregation: SecureAggregation | None = None
    membership: Membership = Membership()
    attack: Attack | None = None
