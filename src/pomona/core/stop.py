"""Section ``stop``: early stopping of a run."""

from pydantic import Field

from pomona.core.bounds import ROUNDS
from pomona.core.settings import Settings


class Stop(Settings):
    """Early stopping on the clients' validation samples."""

    patience: int = Field(
        ge=1,
        le=ROUNDS,
        description="a run ends after so many evaluations without a better mean of the clients' validation scores, of "
        "the method's headline model, in the run's metric",
    )
    min_gain: float = Field(0.0, ge=0, le=1e6, description="a better mean exceeds the best by more than this")
