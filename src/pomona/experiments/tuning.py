"""The same tuning budget for every method: points drawn from its grid, one chosen by validation, never by test data."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from pomona.core.rng import stream
from pomona.experiments.suite import Point

RULE = (
    "the point with the best mean over clients of the metric on validation data, in its best round, of the model that "
    "the method is judged by; where those data do not define the metric, with the lowest loss on them; of equally good "
    "points the first"
)


def points(space: Mapping[str, Sequence[Any]], most: int, seed: int, name: str) -> tuple[Point, ...]:
    """Draw at most ``most`` points from a grid, in the grid's order; all of a smaller grid.

    Args:
        space: dotted keys and the values of each; the last key varies fastest.
        most: the budget, at least 1.
        seed: of the draw, without replacement.
        name: the method's; each method has a draw of its own.

    Returns:
        The points; one empty point for an empty space.
    """
    grid = [dict(zip(space, values, strict=True)) for values in product(*space.values())]
    if len(grid) <= most:
        return tuple(grid)
    drawn = stream(seed, f"tuning {name}").choice(len(grid), most, replace=False)
    return tuple(grid[i] for i in sorted(drawn.tolist()))


def choose(scores: Sequence[float | None]) -> int | None:
    """The first of the highest scores; None where no point has one."""
    known = [s for s in scores if s is not None]
    return scores.index(max(known)) if known else None
