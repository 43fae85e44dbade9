"""Section ``stop``: early stopping of a run."""

from typing import Self

from pydantic import Field, model_validator

from pomona.core.bounds import ROUNDS
from pomona.core.settings import Settings, refuse_idle


class Stop(Settings):
    """Early stopping on the clients' validation samples."""

    patience: int | None = Field(
        None,
        ge=1,
        le=ROUNDS,
        description="a run ends after so many evaluations without a better mean of the clients' validation scores, of "
        "the method's headline model, in the run's metric; never if not set",
    )
    min_gain: float = Field(0.0, ge=0, le=1e6, description="a better mean exceeds the best by more than this")

    @model_validator(mode="after")
    def _placed(self) -> Self:
        if self.patience is None:
            refuse_idle(self, "stop.", ("min_gain",), "needs stop.patience, which is not set")
        return self
