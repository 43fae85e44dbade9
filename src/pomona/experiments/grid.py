"""The cells of a bench: every possible run, with resolved settings and its folder; and the points
of a search.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from pomona.config import Config
from pomona.config.machine import INERT
from pomona.core.errors import ConfigError
from pomona.core.rng import stream
from pomona.core.toml import flat
from pomona.experiments.job import JobState
from pomona.experiments.suite import Point, Size, Suite


@dataclass(frozen=True)
class Cell:
    """One run of a bench.

    Attributes:
        scenario, method: names in the suite.
        point: its searched settings; empty without a search.
        seed: root of its random streams.
        config: its settings.
        folder: of its record, below the bench's.
    """

    scenario: str
    method: str
    point: Point = field(hash=False)
    seed: int
    config: Config = field(hash=False, repr=False)
    folder: Path


@dataclass(frozen=True)
class Group:
    """The cells of one method in one scenario.

    Attributes:
        trials: one cell per point, with the search seed; empty if there is nothing to choose.
        finals: for each point the cells of all seeds, of which only those of the chosen point are
            run. A trial is the same run as the final cell of its point and seed.
    """

    scenario: str
    method: str
    points: tuple[Point, ...]
    trials: tuple[Cell, ...]
    finals: tuple[tuple[Cell, ...], ...]

    def chosen(self, verdicts: Mapping[Path, JobState]) -> int | None:
        """Return the index of the chosen point; None until all trials are settled, or if none has a
        score.
        """
        if not self.trials:
            return 0
        settled = [verdicts[cell.folder] for cell in self.trials]
        return choose([v.score for v in settled]) if all(v.settled for v in settled) else None

    def ready(self, verdicts: Mapping[Path, JobState]) -> tuple[Cell, ...]:
        """Return the cells that are ready to run, finished or not: the trials, then the chosen
        point's.
        """
        chosen = self.chosen(verdicts)
        return self.trials if chosen is None else (*self.trials, *self.finals[chosen])

    def cells(self) -> tuple[Cell, ...]:
        """Return every cell that may be run."""
        return (*self.trials, *(cell for row in self.finals for cell in row))


def plan(suite: Suite, size: Size) -> tuple[Group, ...]:
    """Return all groups of a suite, in the order of its file.

    Raises ConfigError for settings that cannot be run.
    """
    return tuple(_group(suite, size, scenario, method) for scenario, method in suite.pairs(size))


def _group(suite: Suite, size: Size, scenario: str, method: str) -> Group:
    sized = suite.sized(size)
    assert sized.seeds
    assert sized.points
    tried = points(suite.space(size, method), sized.points, suite.search_seed, method)

    def cell(point: Point, seed: int) -> Cell:
        config = suite.config(size, scenario, method, point, seed)
        folder = Path("cells") / scenario / method / f"seed-{seed}-{digest(config)[:12]}"
        return Cell(scenario, method, point, seed, config, folder)

    trials = tuple(cell(point, suite.search_seed) for point in tried) if len(tried) > 1 else ()
    for trial in trials:
        _require_validation(trial)
    return Group(
        scenario,
        method,
        tried,
        trials,
        tuple(tuple(cell(p, s) for s in sized.seeds) for p in tried),
    )


def _require_validation(trial: Cell) -> None:
    """Refuse a search that has no validation samples to choose by."""
    dealt = trial.config.partition and not trial.config.partition.members
    if dealt and not trial.config.data.validation_share:
        raise ConfigError(
            f"scenario {trial.scenario}, method {trial.method}: data.validation_share = 0, but "
            "points are chosen by validation; raise it, or set points = 1"
        )


def digest(config: Config) -> str:
    """Return the SHA-256 in hex of non-default settings, so that adding a key does not change
    existing digests.
    """
    settings = {
        **flat(config.model_dump(mode="json", exclude_defaults=True)),
        "method.name": config.method.name,
    }
    partition = {"partition.name": config.partition.name} if config.partition else {}
    settings = {k: v for k, v in {**settings, **partition}.items() if k not in INERT}
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


MAX_POINTS = 2**62  # points of a grid, so that an index fits the generator
RULE = (
    "the point with the best mean over clients of the metric on validation data, in its best "
    "round, of the method's headline model; where those data do not define the metric, with the "
    "lowest loss on them; of equally good points the first"
)


def points(
    space: Mapping[str, Sequence[Any]], limit: int, seed: int, name: str
) -> tuple[Point, ...]:
    """Draw at most ``limit`` points from a grid, in the grid's order; all of a smaller grid.

    Args:
        space: dotted keys and the values of each; the last key varies fastest.
        limit: the budget, at least 1.
        seed: of the draw, without replacement.
        name: the method's, which has its own draw.

    Returns:
        The points; one empty point for an empty space.

    Raises ConfigError for a grid of more than ``MAX_POINTS``.
    """
    size = prod(map(len, space.values()))
    if size <= limit:
        return tuple(_point(space, i) for i in range(size))
    if size > MAX_POINTS:
        raise ConfigError(
            f"the search of {name} has {size:.1e} points; the limit is {MAX_POINTS:.1e}"
        )
    indices = stream(seed, f"tuning {name}").choice(size, limit, replace=False)
    return tuple(_point(space, i) for i in sorted(indices.tolist()))


def _point(space: Mapping[str, Sequence[Any]], number: int) -> Point:
    """Return the point with an index in the grid's order, without building the grid."""
    values = {}
    for key, choices in reversed(list(space.items())):
        number, position = divmod(number, len(choices))
        values[key] = choices[position]
    return {key: values[key] for key in space}


def choose(scores: Sequence[float | None]) -> int | None:
    """Return the first of the highest scores; None if no point has one."""
    defined = [s for s in scores if s is not None]
    return scores.index(max(defined)) if defined else None
