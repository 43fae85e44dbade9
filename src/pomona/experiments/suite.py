"""A suite: a TOML file of scenarios, methods, seeds and sizes, validated before anything runs.

    title = "Digits"
    seeds = [0, 1, 2]
    points = 3                        # settings tried for each method, at most; the same for all
    search.lr = [0.03, 0.1, 0.3]      # a grid that every method is tuned over

    [base]                            # settings of every run, as in a run's own TOML file
    rounds = 40

    [size.smoke]                      # changes for `--size smoke`
    rounds = 2
    search.lr = [0.1, 0.3]            # replaces the suite's grid; seeds and points can be, too
    search_of.apple."method.mu" = [1] # replaces a method's own

    [scenario.dirichlet]              # a column: data and partition
    data = "digits"
    partition = { name = "dirichlet", beta = 1.0 }

    [method.apple]                    # a row: the method is named by the key, or by `method`
    search."method.mu" = [0.01, 0.1]  # its own grid, in addition to the common one
    at.dirichlet.lr = 0.1             # only in one scenario

Later layers win: base, scenario, method, method in the scenario, size, size in the scenario, the
point searched, and `[settings]`, which apply to every run at every size (``pomona bench SUITE
key=value`` writes them).
"""

import re
from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from pomona.config import Config, resolve
from pomona.core.errors import ConfigError, suggestion
from pomona.core.file_kinds import require_kind
from pomona.core.settings import Settings
from pomona.core.toml import Tree, branch, flat, leaves, read_file, value_remedy
from pomona.data.catalogue import data_dir
from pomona.data.settings import DataFolder, DataSettings
from pomona.experiments.reference import Reference, read_reference
from pomona.methods import METHODS, is_registered

Size = Literal["smoke", "cpu", "full"]
Point = Mapping[str, Any]  # dotted key of a run -> value

NAME = r"[A-Za-z0-9][A-Za-z0-9_.,=+-]*"


def _as_name(name: str) -> str:
    if not re.fullmatch(NAME, name):
        hint = f", and name the class inside it: method = {name!r}" if ":" in name else ""
        raise ValueError(f"use letters, digits and _ . , = + - (it names a folder){hint}")
    return name


Name = Annotated[
    str,
    Field(max_length=80),
    AfterValidator(_as_name),
    WithJsonSchema({"type": "string", "pattern": f"^{NAME}$", "maxLength": 80}),
]
INSTEAD = {"seed": "seeds = [...], or --seeds", "workers": "--jobs, the number of runs at a time"}
"""Settings of a run that a bench sets itself, and what sets them."""
MAX_POINTS = 10**4  # tried for a method


def _each_once(seeds: tuple[int, ...]) -> tuple[int, ...]:
    """Refuse a seed that is given twice: it would count as two runs, which do not differ."""
    if len(set(seeds)) < len(seeds):
        raise ValueError("a seed is given twice")
    return seeds


Seeds = Annotated[
    tuple[Annotated[int, Field(ge=0)], ...],
    Field(min_length=1, max_length=1000),
    AfterValidator(_each_once),
]


Space = Annotated[
    dict[str, Annotated[tuple[Any, ...], Field(min_length=1)]], BeforeValidator(leaves)
]


class SuitePart(Settings):
    """Settings of runs, with the keys of a part of a suite.

    Attributes:
        run: Settings of runs, as written.
    """

    run: Tree = Field({})

    @model_validator(mode="before")
    @classmethod
    def _split_keys(cls, tree: Any) -> Any:
        if not isinstance(tree, dict):
            return tree
        names = cls.model_fields.keys() - {"run"}
        unknown = [key for key in tree if key not in names and key not in Config.model_fields]
        if unknown and unknown[0] in Suite.model_fields:
            raise ValueError(f"the key {unknown[0]!r} belongs at the top of the suite")
        if unknown:
            raise ValueError(
                f"unknown key {unknown[0]!r}; "
                f"{suggestion(unknown[0], [*names, *Config.model_fields])}"
            )
        run = {k: v for k, v in tree.items() if k not in names}
        return {**{k: tree[k] for k in names & tree.keys()}, "run": run}


class ScenarioPart(SuitePart):
    """A column of the table.

    Attributes:
        methods: Rows it has, by names or patterns (fedavg*); all if empty.
        title: Its name in tables, and in a file of reference numbers.
    """

    methods: tuple[str, ...] = ()
    title: str = ""


class MethodPart(SuitePart):
    """A row of the table.

    Attributes:
        row: Its name in tables, and in a file of reference numbers.
        search: Dotted keys and the values to try, besides the suite's.
        at: Settings in one scenario.
    """

    row: str = ""
    search: Space = Field({})
    at: dict[str, Tree] = Field({})


class SizePart(SuitePart):
    """Settings changed by a size.

    Attributes:
        seeds: Seeds, where not the suite's.
        points: Points, where not the suite's.
        search: Keys and values to try, where not the suite's.
        search_of: A method's own keys and values, where not its row's.
        scenarios: Columns it has, by names or patterns; all if empty.
        methods: Rows it has, by names or patterns; all if empty.
        at: Settings in one scenario.
    """

    seeds: Seeds | None = None
    points: int | None = Field(None, ge=1, le=MAX_POINTS)
    search: Space | None = None
    search_of: dict[str, Space] = Field({})
    scenarios: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    at: dict[str, Tree] = Field({})


class Suite(Settings):
    """A grid of scenarios, methods and seeds.

    Attributes:
        title: What the table shows, in one line.
        reference: File of reference numbers shown next to ours, relative to the suite's.
        note: What a reader of the table should know.
        own: Rows that are tested against every other.
        seeds: Seeds of the cells.
        points: Settings tried for a method, at most; 1: none is searched.
        search_seed: Seed of the draw of points, and of the runs that try them.
        search: Dotted keys and the values to try with every method.
        keep_models: Keep the models of finished cells.
        base: Settings of every run.
        settings: Settings of every run, over all others; they are not searched.
        size: What each size changes.
        scenario: Columns.
        method: Rows.
    """

    title: str = Field(min_length=1)
    reference: Reference | None = None
    note: str = ""
    own: tuple[str, ...] = ()
    seeds: Seeds = (0,)
    points: int = Field(1, ge=1, le=MAX_POINTS)
    search_seed: int = Field(0, ge=0)
    search: Space = Field({})
    keep_models: bool = False
    base: SuitePart = SuitePart()
    settings: Tree = Field({})
    size: dict[Size, SizePart] = Field({})
    scenario: dict[Name, ScenarioPart] = Field(min_length=1)
    method: dict[Name, MethodPart] = Field(min_length=1)

    @model_validator(mode="after")
    def _names(self) -> Self:
        """Check that names used in other parts exist."""
        scenarios, methods = list[str](), list(self.own)
        for size in self.size.values():
            scenarios += [*size.at, *_matchless(size.scenarios, self.scenario)]
            methods += [*_matchless(size.methods, self.method), *size.search_of]
        for row in self.method.values():
            scenarios += row.at
        for column in self.scenario.values():
            methods += _matchless(column.methods, self.method)
        if fault := _unknown(scenarios, self.scenario, "scenario", "in this suite"):
            raise ValueError(fault)
        if fault := _unknown(methods, self.method, "method", "in this suite"):
            raise ValueError(fault)
        return self

    def sized(self, size: Size) -> SizePart:
        """Return the settings changed by a size, with the suite's seeds and points as defaults."""
        changes = self.size.get(size, SizePart())
        return changes.model_copy(
            update={"seeds": changes.seeds or self.seeds, "points": changes.points or self.points}
        )

    def seeded(self, seeds: Collection[int] | Collection[str]) -> Self:
        """Return the suite with these seeds at every size, in place of its own.

        Raises ConfigError for anything but 1 to 1000 different integers from 0.
        """
        try:
            validated = TypeAdapter(Seeds).validate_python(tuple(seeds))
        except ValidationError as fault:
            raise ConfigError(_explain({**fault.errors()[0], "loc": ("seeds",)})) from None
        sizes = {
            name: changes.model_copy(update={"seeds": None}) for name, changes in self.size.items()
        }
        return self.model_copy(update={"seeds": validated, "size": sizes})

    def pairs(
        self, size: Size, scenarios: Collection[str] = (), methods: Collection[str] = ()
    ) -> list[tuple[str, str]]:
        """Return the (scenario, method) pairs of a size in the order of the file, or those of some
        columns and rows.

        An empty selection includes all. Raises ConfigError for a name that the size does not have,
        or if no pair is left.
        """
        size_pairs = self._pairs(size)
        context = f"in this suite at size {size}"
        if fault := _unknown(scenarios, {s for s, _ in size_pairs}, "scenario", context):
            raise ConfigError(fault)
        if fault := _unknown(methods, {m for _, m in size_pairs}, "method", context):
            raise ConfigError(fault)
        columns, rows = scenarios or self.scenario, methods or self.method
        selected = [(s, m) for s, m in size_pairs if s in columns and m in rows]
        if not selected:
            raise ConfigError(
                f"{self.title}: no method is left in any scenario at size {size}; check methods "
                "= [...]"
            )
        return selected

    def _pairs(self, size: Size) -> list[tuple[str, str]]:
        changes = self.sized(size)
        rows = _matching(changes.methods, self.method)
        return [
            (s, m)
            for s in _matching(changes.scenarios, self.scenario)
            for m in _matching(self.scenario[s].methods, rows)
        ]

    def space(self, size: Size, method: str) -> dict[str, tuple[Any, ...]]:
        """Return the grid for tuning a method: the common one updated by its own; a size's replaces
        either.

        Empty if a size tries only one point, so that nothing is searched.
        """
        changes = self.sized(size)
        if changes.points == 1:
            return {}
        common = self.search if changes.search is None else changes.search
        grid = {**common, **changes.search_of.get(method, self.method[method].search)}
        return {key: values for key, values in grid.items() if key not in flat(self.settings)}

    def config(self, size: Size, scenario: str, method: str, point: Point, seed: int) -> Config:
        """Return the settings of one run.

        Raises ConfigError with the cell and every bad key or value.
        """
        row, changes = self.method[method], self.sized(size)
        method_layer: Tree = {"method": {"name": method}} if is_registered(method) else {}
        layers: list[Mapping[str, Any]] = [
            self.base.run,
            self.scenario[scenario].run,
            method_layer,
            row.run,
            row.at.get(scenario, {}),
            changes.run,
            changes.at.get(scenario, {}),
            *(branch(k, v) for k, v in point.items()),
            self.settings,
        ]
        try:
            if forbidden := [key for key in INSTEAD if any(key in layer for layer in layers)]:
                raise ConfigError(
                    f"{forbidden[0]} cannot be set in a suite; give {INSTEAD[forbidden[0]]}"
                )
            if not method_layer and "method" not in row.run:
                raise ConfigError(
                    f"unknown method {method!r}; {suggestion(method, METHODS)}, or name it: "
                    "method = ..."
                )
            config = resolve(*layers, {"seed": seed, "workers": 1})
            # cells are what a cluster would run
            return config.model_copy(update={"cluster": None, "data": _with_folder(config.data)})
        except ConfigError as fault:
            raise ConfigError(f"scenario {scenario}, method {method}: {fault}") from None


def _with_folder(data: DataSettings) -> DataSettings:
    """Return the settings with their folder, which a worker's environment may not name alike."""
    if isinstance(data, DataFolder) and (folder := data_dir(data.dir)):
        return data.model_copy(update={"dir": folder.absolute()})
    return data


def _matching(patterns: Collection[str], names: Collection[str]) -> list[str]:
    """Return the known names that match a pattern, in their order; all if there is none."""
    return [k for k in names if not patterns or any(fnmatchcase(k, p) for p in patterns)]


def _matchless(patterns: Collection[str], names: Collection[str]) -> list[str]:
    return [pattern for pattern in patterns if not _matching([pattern], names)]


def _unknown(names: Collection[str], choices: Collection[str], noun: str, context: str) -> str:
    """Return an error for the first name that is not known; empty if all are."""
    name = next((name for name in names if name not in choices), None)
    return "" if name is None else f"no {noun} {name!r} {context}; {suggestion(name, choices)}"


def read_suite(source: Path | str | Mapping[str, Any] | Suite) -> Suite:
    """Read a suite from its file or its tree.

    Raises ConfigError with the file and every bad key or value.
    """
    if isinstance(source, Suite):
        return source
    if isinstance(source, Mapping):
        tree, folder, prefix = dict(source), Path(), ""
    else:
        file = Path(source)
        tree, folder, prefix = read_file(file), file.parent, f"{file}: "
        require_kind(file, tree, "suite")
    if isinstance(tree.get("reference"), str):
        tree["reference"] = read_reference(folder / tree["reference"])
    try:
        return Suite.model_validate(tree)
    except ValidationError as fault:
        raise ConfigError(prefix + "; ".join(_explain(dict(e)) for e in fault.errors())) from None


MISSING = {
    "title": "one line that says what the table shows",
    "scenario": "a column of the table, such as [scenario.digits] with a line data = 'digits'",
    "method": "a row of the table, such as [method.fedavg]",
}
"""What to write for a required key."""


def _explain(error: Tree) -> str:
    key = ".".join(str(p) for p in error["loc"] if p != "[key]")
    match error["type"]:
        case "extra_forbidden":
            return f"unknown key {key!r}; {suggestion(key, Suite.model_fields)}"
        case "missing":
            return f"{key} must be set" + (f": {MISSING[key]}" if key in MISSING else "")
        case "value_error":
            return f"{key}: {error['ctx']['error']}" if key else str(error["ctx"]["error"])
        case _:
            return f"{key} = {error['input']!r}: {value_remedy(error)}"


FOLDER = Path(__file__).parent / "suites"
"""Suites that come with the package."""


def suites() -> dict[str, Path]:
    """Return the file of each suite by name, in alphabetical order."""
    return {file.stem: file for file in sorted(FOLDER.glob("*.toml"))}


def suite_file(name: str) -> Path:
    """Return a file's path, or the file of a bundled suite. Raises ConfigError if it is neither."""
    path, bundled = Path(name), suites()
    if path.suffix == ".toml" or path.is_file():
        return path
    if name not in bundled:
        raise ConfigError(
            f"no file and no suite {name!r}; {suggestion(name, bundled)}, or give a "
            "suite's TOML file"
        )
    return bundled[name]
