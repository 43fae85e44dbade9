"""Section ``stop``: early stopping of a run."""

from pydantic import Field

from pomona.core.bounds import ROUNDS
from pomona.core.settings import Settings


class Stop(Settings):
    """Early stopping on the clients' validation samples."""

    patience: int = Field(
        ge=1,
        le=ROUNDS,
        description="a run ends after this many evaluations without a better headline metric on "
        "validation samples, mean over clients",
    )
    min_gain: float = Field(
        0.0, ge=0, le=1e6, description="an improvement counts if it exceeds this"
    )
