"""The scores of one client: one record from the client to the record of the run."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import ConfigDict, Field, StringConstraints

from pomona.core.bounds import Count, Label, Measured

Moment = Annotated[str, StringConstraints(pattern="^(received|trained)$")]
Split = Annotated[str, StringConstraints(pattern="^(validation|test)$")]
Share = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True, slots=True)
class Score:
    """One client's scores for one named model on one split; None if its samples do not define them.

    Creating one checks nothing. Where one comes from a message or a file, Pydantic checks it by
    these types.

    Attributes:
        model: "personal", "global" or "local".
        when: "received" (before local training) or "trained".
        split: "validation" or "test".
        samples: their number.
        loss: mean per sample.
        accuracy: share of right classes, or of right flags; None for regression.
        value: the run's metric.
        interval: its 95 % confidence interval, if requested and defined.
    """

    __pydantic_config__ = ConfigDict(
        extra="forbid", allow_inf_nan=False, revalidate_instances="always"
    )

    model: Label
    when: Moment
    split: Split
    samples: Count
    loss: Measured | None = None
    accuracy: Share | None = None
    value: Measured | None = None
    interval: tuple[Measured, Measured] | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        """Key (model, when, split) of a curve over rounds."""
        return (self.model, self.when, self.split)
