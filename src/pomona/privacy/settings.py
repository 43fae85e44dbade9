"""Settings of section ``privacy``."""

from typing import Literal

from pydantic import Field, field_validator

from pomona.core.bounds import Label
from pomona.core.settings import Settings

LEAST_NOISE = 1e-3  # epsilon is in the millions there, and accountants overflow not far below


class Privacy(Settings):
    """Differentially private training for every client; the field's symbols in brackets."""

    noise_multiplier: float = Field(
        ge=0, le=1e6, description="noise by clipping norm (sigma); 0 clips only: no privacy"
    )
    max_grad_norm: float = Field(ge=1e-30, le=1e6, description="L2 norm to which each sample's gradient is clipped (C)")
    delta: float = Field(ge=1e-60, lt=1, description="chance that the bound does not hold (delta); below 1 / n")
    epsilon_budget: float | None = Field(
        None, gt=0, le=1e9, description="a client stops before it would spend more (epsilon); no limit if not set"
    )
    accountant: Literal["rdp", "prv"] = Field(
        "rdp", description="how losses add up: Renyi, or the tighter numerical one"
    )
    acknowledge: tuple[Label, ...] = Field(
        (), max_length=100, description="names of the releases that are not covered, and accepted"
    )
    seed: int | None = Field(
        None,
        ge=0,
        lt=2**63,
        description="test only: seeds the noise; anyone who knows the seed can remove it, so there is no privacy",
    )

    @field_validator("noise_multiplier")
    @classmethod
    def _none_or_some(cls, sigma: float) -> float:
        if 0 < sigma < LEAST_NOISE:
            raise ValueError(f"so little noise does not protect anyone; give {LEAST_NOISE} or more, or 0 for none")
        return sigma

    @property
    def void(self) -> str | None:
        """Explain for the record why these settings give no privacy; None if they give some."""
        if self.seed is not None:
            return "no privacy: the noise comes from a test seed"
        if not self.noise_multiplier:
            return "no privacy: noise_multiplier = 0"
        return None
