"""Sections that one kind of study has: [evaluate], with the models to evaluate, and [search], with
the settings to try.
"""

from collections.abc import Mapping
from math import prod
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, FailFast, Field, StringConstraints, model_validator

from pomona.core.bounds import ClientId, Name, Sha256, Table
from pomona.core.settings import Settings
from pomona.core.toml import leaves

MOST_JUDGED = 500  # most models in one study; each has a score on two splits
# what consent rests on
FIXED = ("method", "model", "metric", "model.init", "model.init_sha256", "model.loss")
MOST_TRIALS = 200
MOST_CELLS = 10_000  # largest grid from which points are drawn

Value = (
    bool
    | int
    | float
    | Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.+-]*$", max_length=80)]
)
Key = Annotated[
    str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*$", max_length=80)
]


class EvaluateTerms(Settings):
    """The evaluated models: personal models of an earlier study or, if none is named, the given
    first weights.

    Attributes:
        of: the study whose personal models are evaluated; 'kit': the one that the kits came with
        agreement: that study's hash; `pomona server study submit` sets it
        models: the silos that have such a model, with their places; set by submit
    """

    of: Name | None = None
    agreement: Sha256 | None = None
    models: Table[Name, ClientId] = Field({}, max_length=MOST_JUDGED)

    @model_validator(mode="after")
    def _validate(self) -> Self:
        if self.of is None and (self.models or self.agreement):
            raise ValueError(
                "models are those of a study; name it in evaluate.of, or leave them out"
            )
        return self


class SearchTerms(Settings):
    """The settings to try: a grid, or points drawn from it.

    Attributes:
        space: dotted keys of [run], and the values of each
        points: largest number of settings tried: all of a smaller grid, else this many at random
        seed: of the draw
    """

    space: Annotated[
        Table[Key, Annotated[tuple[Value, ...], Field(min_length=1, max_length=100), FailFast()]],
        BeforeValidator(leaves),
    ] = Field(min_length=1, max_length=20)
    points: int = Field(10, ge=1, le=MOST_TRIALS)
    seed: int = Field(0, ge=0, lt=2**63)

    @model_validator(mode="after")
    def _countable(self) -> Self:
        if fixed := [
            k
            for k in self.space
            if k in FIXED or k.endswith(".name") or k.startswith(("privacy", "secure_aggregation"))
        ]:
            raise ValueError(
                f"{fixed[0]} is the same in all trials of a search; submit a study for each value "
                "instead"
            )
        if (cells := prod(map(len, self.space.values()))) > MOST_CELLS:
            raise ValueError(
                f"space is a grid of {cells} points; the limit is {MOST_CELLS}: remove some"
            )
        return self

    @property
    def trials(self) -> tuple[Mapping[str, Any], ...]:
        """The points to try, drawn as a bench draws them."""
        from pomona.experiments.grid import points  # imported late: it loads PyTorch

        return points(self.space, self.points, self.seed, "search")
