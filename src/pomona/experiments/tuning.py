"""Tuning with the same budget for every method: points drawn from its grid, one chosen on validation data only."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from pomona.core.errors import ConfigError
from pomona.core.rng import stream
from pomona.experiments.suite import Point

MOST_POINTS = 2**62  # points of a grid, so that an index fits the generator
RULE = (
    "the point with the best mean over clients of the metric on validation data, in its best round, of the method's "
    "headline model; where those data do not define the metric, with the lowest loss on them; of equally good "
    "points the first"
)


def points(space: Mapping[str, Sequence[Any]], most: int, seed: int, name: str) -> tuple[Point, ...]:
    """Draw at most ``most`` points from a grid, in the grid's order; all of a smaller grid.

    Args:
        space: dotted keys and the values of each; the last key varies fastest.
        most: the budget, at least 1.
        seed: of the draw, without replacement.
        name: the method's, which has its own draw.

    Returns:
        The points; one empty point for an empty space.

    Raises ConfigError for a grid of more than ``MOST_POINTS``.
    """
    size = prod(map(len, space.values()))
    if size <= most:
        return tuple(_point(space, i) for i in range(size))
    if size > MOST_POINTS:
        raise ConfigError(f"the search of {name} has {size:.1e} points, at most {MOST_POINTS:.1e} are drawn from")
    drawn = stream(seed, f"tuning {name}").choice(size, most, replace=False)
    return tuple(_point(space, i) for i in sorted(drawn.tolist()))


def _point(space: Mapping[str, Sequence[Any]], number: int) -> Point:
    """Return the point with an index in the grid's order, without building the grid."""
    values = {}
    for key, known in reversed(list(space.items())):
        number, place = divmod(number, len(known))
        values[key] = known[place]
    return {key: values[key] for key in space}


def choose(scores: Sequence[float | None]) -> int | None:
    """Return the first of the highest scores; None if no point has one."""
    known = [s for s in scores if s is not None]
    return scores.index(max(known)) if known else None
