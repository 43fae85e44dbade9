"""The server's first step: from the silos' columns to a common way of reading each."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from pomona.core.errors import DataError, ProtocolError, listed
from pomona_federation.survey.settings import (
    ColumnKind,
    ColumnSpec,
    ColumnsReply,
    FiguresQuestion,
    FiguresReply,
    SafeColumn,
    SurveySettings,
)

DOMINANT_SHARE = 0.9  # of all rows, from which one silo's share is remarked on
MARKERS = 50  # of gaps in one column


def common_question(
    survey: SurveySettings, silos: Mapping[str, ColumnsReply]
) -> tuple[FiguresQuestion, tuple[str, ...]]:
    """How all silos are to read their common columns, and remarks on them, one line each.

    A column that is categorical at one silo is read as such by all; gap markers are those of all
    silos together.

    Raises:
        DataError: silos have samples or labels of different kinds, or no column in common.
    """
    _require_same_schema(silos)
    by_silo = {name: {spec.name: spec for spec in reply.columns} for name, reply in silos.items()}
    common, notes = _common(survey, by_silo)
    notes += _single_silo_effects(silos, by_silo, common)
    by_column = {column: [specs[column] for specs in by_silo.values()] for column in common}
    if mixed := _mixed(by_column):
        notes.append(
            f"dates for some silos and numbers for others: {listed(mixed)}; set data.dates at all "
            "of them"
        )
    if truncated := [c for c in common if len(_markers(by_column[c])) > MARKERS]:
        notes.append(
            f"more than {MARKERS} markers of gaps in {listed(truncated)}: those of the first silos "
            "count"
        )
    question = FiguresQuestion(
        columns=tuple(_merged_spec(by_column[column]) for column in common if column not in mixed)
    )
    if not question.columns:
        raise DataError(
            f"{listed([*silos])} have no column in common; give their columns the same names in "
            "their silo.toml",
            *notes,
        )
    return question, tuple(notes)


def _common(
    survey: SurveySettings, by_silo: Mapping[str, Mapping[str, ColumnSpec]]
) -> tuple[list[str], list[str]]:
    """The columns that all silos have and the survey asks about, and remarks on the rest."""
    counts, n_silos = Counter(chain.from_iterable(by_silo.values())), len(by_silo)
    usual = {column for column, count in counts.items() if 2 * count > n_silos}
    notes = []
    for name, specs in by_silo.items():
        if absent := sorted(usual - specs.keys()):
            notes.append(
                f"{name} lacks columns that most have: {listed(absent)}; it is left out of a "
                "survey that it declines"
            )
        if extra := sorted(specs.keys() - usual):
            notes.append(
                f"{name} has columns that the others do not have: {listed(extra)}; leave them out "
                "there with data.drop_columns"
            )
    everywhere = [column for column, count in counts.items() if count == n_silos]
    absent = sorted({*survey.columns} - {*everywhere})
    notes += [f"column {column} is not at every silo" for column in absent]
    requested = {*survey.columns} or {*everywhere}
    return [column for column in everywhere if column in requested], notes


def _single_silo_effects(
    silos: Mapping[str, ColumnsReply],
    by_silo: Mapping[str, Mapping[str, ColumnSpec]],
    common: Sequence[str],
) -> Iterator[str]:
    """Remarks on what one silo's answer changes for all: each silo discloses a column once, so that
    a false answer cannot be repaired by another survey.
    """
    if len(silos) == 1:
        return
    all_rows = sum(reply.rows for reply in silos.values())
    for name, silo_specs in by_silo.items():
        peers = [specs for silo, specs in by_silo.items() if silo != name]
        marked = [
            f"{column}: {listed(markers)}"
            for column in common
            if (markers := _unshared(column, silo_specs, peers))
        ]
        if marked:
            yield (
                f"{name} marks gaps that the others do not mark ({listed(marked)}); such cells "
                "count as gaps for all: ask it if they are many"
            )
        if differing := _own_categories(common, silo_specs, peers):
            yield (
                f"{name} has categories where others have numbers or dates: {listed(differing)}; "
                "all are read as categories: ask it if that is meant"
            )
        if silos[name].rows > DOMINANT_SHARE * all_rows:
            yield (
                f"{name} claims {silos[name].rows} of all {all_rows} rows: the figures of all, and "
                "section task, are its own"
            )


def _unshared(
    column: str, specs: Mapping[str, ColumnSpec], peers: Sequence[Mapping[str, ColumnSpec]]
) -> list[str]:
    """Markers of gaps in a silo's column that some peer does not have."""
    shared = set.intersection(*({*peer[column].missing} for peer in peers))
    return [marker for marker in specs[column].missing if marker not in shared]


def _own_categories(
    common: Sequence[str],
    specs: Mapping[str, ColumnSpec],
    peers: Sequence[Mapping[str, ColumnSpec]],
) -> list[str]:
    """The columns that are categories at a silo, and not at some peer."""
    categories = [column for column in common if specs[column].kind == "category"]
    return [c for c in categories if _column_kinds(peer[c] for peer in peers) != {"category"}]


def _require_same_schema(silos: Mapping[str, ColumnsReply]) -> None:
    """Raise DataError unless all silos have samples and labels of one kind."""
    first, reference = next(iter(silos.items()))
    for name, description in silos.items():
        for field in ("kind", "shape", "dtype", "targets", "labels"):
            if (value := getattr(description, field)) != (expected := getattr(reference, field)):
                raise DataError(
                    f"silo {name} has {field} {_text(value)}, {first} {_text(expected)}; bring "
                    "both into one form, and start another survey"
                )


def require_answered(
    survey: SurveySettings,
    question: FiguresQuestion,
    description: ColumnsReply,
    reply: FiguresReply,
    max_rows: int,
) -> None:
    """Raise ProtocolError unless a reply is well-formed, so that its statistics cannot corrupt the
    others'.

    It must cover exactly the columns asked for, and the labels that the silo has, in cells that are
    neither too small nor too many.

    Args:
        survey: the agreed settings.
        question: the question.
        description: the silo's columns, as it reported them.
        reply: its answer.
        max_rows: most rows that a silo may have.
    """
    _require_requested(question, description, reply)
    _require_cell_sizes(survey, reply, max_rows)


def _require_requested(
    question: FiguresQuestion, description: ColumnsReply, reply: FiguresReply
) -> None:
    """Raise ProtocolError unless a reply covers exactly the columns asked for, and the labels that
    the silo has.
    """
    numbers = {spec.name for spec in question.columns if spec.kind != "category"}
    names = {spec.name for spec in question.columns} - numbers
    withheld = {*reply.withheld}
    covered = {*reply.numbers}, {*reply.names}
    if covered != (numbers - withheld, names - withheld) or not withheld <= numbers | names:
        raise ProtocolError("its answer covers other columns than were asked about")
    labels = description.labels[:1] if description.targets == "survival" else description.labels
    of_classes = description.targets == "classes"
    if bool(reply.classes) != of_classes or (
        (of_classes or labels) and {*reply.targets} != {*labels}
    ):
        raise ProtocolError("its answer covers other labels than the silo has")


def _require_cell_sizes(survey: SurveySettings, reply: FiguresReply, max_rows: int) -> None:
    """Raise ProtocolError for cells of too few rows, for too many cells, and for more rows than a
    silo may have.
    """
    columns: list[SafeColumn] = [*reply.numbers.values(), *reply.targets.values()]
    if not survey.least <= reply.rows <= max_rows:
        raise ProtocolError(
            f"its answer covers {reply.rows} rows, not {survey.least} to {max_rows}"
        )
    if any(len(column.counts) > survey.cells for column in columns):
        raise ProtocolError(f"its answer has more than {survey.cells} cells per column")
    columns += [*reply.names.values(), *([reply.classes] if reply.classes else [])]
    if any(
        0 < n < survey.least
        for n in (*(n for c in columns for n in (*c.counts, c.rest)), *reply.words.values())
    ):
        raise ProtocolError(f"its answer reports fewer than {survey.least} rows")


def _mixed(by_column: Mapping[str, Sequence[ColumnSpec]]) -> list[str]:
    """The columns that have dates for some silos and numbers for others."""
    return [c for c, specs in by_column.items() if _column_kinds(specs) == {"number", "date"}]


def _text(value: object) -> str:
    return listed([*map(str, value)]) or "none" if isinstance(value, tuple) else str(value)


def _column_kinds(specs: Iterable[ColumnSpec]) -> set[ColumnKind]:
    return {spec.kind for spec in specs}


def _merged_spec(specs: Sequence[ColumnSpec]) -> ColumnSpec:
    return ColumnSpec(
        name=specs[0].name,
        kind="category" if "category" in _column_kinds(specs) else specs[0].kind,
        missing=_markers(specs)[:MARKERS],
    )


def _markers(specs: Iterable[ColumnSpec]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(marker for spec in specs for marker in spec.missing))
