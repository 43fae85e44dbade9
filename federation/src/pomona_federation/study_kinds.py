"""Sections ``evaluate`` and ``search`` of a study: the evaluated models, and the settings to try."""

from collections.abc import Mapping
from math import prod
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from pomona.core.bounds import Name, NameOrNone, Place, Sha256
from pomona.core.settings import Settings
from pomona.core.toml import Tree, leaves

MOST_JUDGED = 500  # most models in one study; each has a score on two splits
MOST_TRIALS = 200
TRIALS = "trials"  # folder of a search's trials, in the study's
FIXED = ("method", "model", "metric", "model.init", "model.init_sha256", "model.loss")  # what consent rests on
MOST_CELLS = 10_000  # largest grid from which they are drawn
RESULTS = {"evaluate": "evaluation", "search": "search", "survey": "survey"}  # names of a study's result files by kind
LEAST_SAMPLES = 10  # smallest number of samples whose scores an evaluation shares
JUDGING = ("model", "metric", "seed", "precision")  # keys of section run that affect the evaluation of a model

Value = bool | int | float | Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.+-]*$", max_length=80)]
Key = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*$", max_length=80)]


class EvaluateTerms(Settings):
    """The evaluated models: personal models of an earlier study or, if none is named, the given first weights."""

    of: NameOrNone | None = Field(
        None, description="the study whose personal models are evaluated; empty: the one that the kits came with"
    )
    agreement: Sha256 | None = Field(None, description="that study's hash; `pomona server study submit` sets it")
    models: dict[Name, Place] = Field(
        {}, max_length=MOST_JUDGED, description="the silos that have such a model, with their places; set by submit"
    )

    @model_validator(mode="after")
    def _stands(self) -> Self:
        if self.of is None and (self.models or self.agreement):
            raise ValueError("models are those of a study; name it in evaluate.of, or leave them out")
        return self


class SearchTerms(Settings):
    """The settings to try: a grid, or points drawn from it."""

    space: Annotated[
        dict[Key, Annotated[tuple[Value, ...], Field(min_length=1, max_length=100)]], BeforeValidator(leaves)
    ] = Field(min_length=1, max_length=20, description="dotted keys of section run, and the values of each")
    points: int = Field(
        10, ge=1, le=MOST_TRIALS, description="settings tried, at most: all of a smaller grid, else so many at random"
    )
    seed: int = Field(0, ge=0, lt=2**63, description="of the draw")

    @model_validator(mode="after")
    def _countable(self) -> Self:
        if fixed := [k for k in self.space if k in FIXED or k.endswith(".name") or k.startswith("privacy")]:
            raise ValueError(f"{fixed[0]} is the same in all trials of a search; submit a study for each value instead")
        if (cells := prod(map(len, self.space.values()))) > MOST_CELLS:
            raise ValueError(
                f"space is a grid of {cells} points, at most {MOST_CELLS} can be drawn from; take some out"
            )
        return self

    @property
    def trials(self) -> tuple[Mapping[str, Any], ...]:
        """The points to try, drawn as a bench draws them."""
        from pomona.experiments.grid import points  # imported late: it loads PyTorch

        return points(self.space, self.points, self.seed, "search")


def at_point(run: Tree, point: Mapping[str, Any]) -> Tree:
    """Section run with the values of a point, by dotted key."""
    tree = dict(run)
    for key, value in point.items():
        first, _, rest = key.partition(".")
        under = tree.get(first)
        section = {"name": under} if isinstance(under, str) else under if isinstance(under, dict) else {}
        tree[first] = at_point(section, {rest: value}) if rest else value
    return tree
