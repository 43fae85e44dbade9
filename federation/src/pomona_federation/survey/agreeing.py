"""The server's first step: from the silos' columns to a common way of reading each."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pomona.core.errors import DataError, ProtocolError, listed
from pomona_federation.survey.replies import (
    ColumnForm,
    ColumnKind,
    ColumnsReply,
    FiguresQuestion,
    FiguresReply,
    SafeColumn,
)
from pomona_federation.survey.settings import SurveySettings

MOST_OF_ALL = 0.9  # of all rows, from which one silo's share is remarked on
MARKERS = 50  # of gaps in one column


def agreed(
    survey: SurveySettings, silos: Mapping[str, ColumnsReply]
) -> tuple[FiguresQuestion, tuple[str, ...]]:
    """How all silos are to read their common columns, and remarks on them, one line each.

    A column that is categorical at one silo is read as such by all; gap markers are those of all
    silos together.

    Raises:
        DataError: silos have samples or labels of different kinds, or no column in common.
    """
    _require_alike(silos)
    by_silo = {name: {form.name: form for form in own.columns} for name, own in silos.items()}
    common, notes = _common(survey, by_silo)
    notes += _decided_alone(silos, by_silo, common)
    forms = {column: [of[column] for of in by_silo.values()] for column in common}
    if mixed := [column for column, each in forms.items() if _kinds(each) == {"number", "date"}]:
        notes.append(
            f"dates for some silos and numbers for others: {listed(mixed)}; set data.dates at all "
            "of them"
        )
    if truncated := [c for c in common if len(_markers(forms[c])) > MARKERS]:
        notes.append(
            f"more than {MARKERS} markers of gaps in {listed(truncated)}: those of the first silos "
            "count"
        )
    question = FiguresQuestion(
        columns=tuple(_form(forms[column]) for column in common if column not in mixed)
    )
    if not question.columns:
        raise DataError(
            f"{listed([*silos])} have no column in common; name their columns alike in their "
            "silo.toml",
            *notes,
        )
    return question, tuple(notes)


def _common(
    survey: SurveySettings, by_silo: Mapping[str, Mapping[str, ColumnForm]]
) -> tuple[list[str], list[str]]:
    """The columns that all silos have and the survey asks about, and remarks on the others."""
    first = next(iter(by_silo.values()))
    common = [column for column in first if all(column in forms for forms in by_silo.values())]
    counts = Counter(column for forms in by_silo.values() for column in forms)
    usual = [column for column, count in counts.items() if 2 * count > len(by_silo)]
    notes = [
        f"{name} lacks columns that most have: {listed(absent)}; it is left out of a survey that "
        "it declines"
        for name, forms in by_silo.items()
        if (absent := [column for column in usual if column not in forms])
    ]
    notes += [
        (
            f"{name} has columns that others have not: {listed(alone)}; it leaves them out by "
            "data.drop_columns"
        )
        for name, forms in by_silo.items()
        if (alone := [c for c in forms if c not in usual and counts[c] < len(by_silo)])
    ]
    notes += [
        f"column {column} is not at every silo" for column in survey.columns if column not in common
    ]
    return [column for column in common if not survey.columns or column in survey.columns], notes


def _decided_alone(
    silos: Mapping[str, ColumnsReply],
    by_silo: Mapping[str, Mapping[str, ColumnForm]],
    common: Sequence[str],
) -> Iterator[str]:
    """Remarks on what one silo's answer changes for all: each silo discloses a column once, so that
    a false answer cannot be repaired by another survey.
    """
    all_rows = sum(reply.rows for reply in silos.values())
    for name, forms in by_silo.items():
        peers = [columns for silo, columns in by_silo.items() if silo != name]
        marked = [
            f"{column}: {listed(markers)}"
            for column in common
            if (markers := [m for m in forms[column].missing if _lacked(m, column, peers)])
        ]
        if marked:
            yield (
                f"{name} marks gaps that others do not mark ({listed(marked)}); such cells count "
                "as gaps for all: ask it if they are many"
            )
        categories = [
            column
            for column in common
            if forms[column].kind == "category"
            and any(columns[column].kind != "category" for columns in peers)
        ]
        if categories:
            yield (
                f"{name} has categories where others have numbers or dates: {listed(categories)}; "
                "all are read as categories: ask it if that is meant"
            )
        if len(silos) > 1 and silos[name].rows > MOST_OF_ALL * all_rows:
            yield (
                f"{name} claims {silos[name].rows} of all {all_rows} rows: the figures of all, and "
                "section task, are its own"
            )


def _lacked(marker: str, column: str, peers: Sequence[Mapping[str, ColumnForm]]) -> bool:
    return any(marker not in forms[column].missing for forms in peers)


def _require_alike(silos: Mapping[str, ColumnsReply]) -> None:
    """Raise DataError unless all silos have samples and labels of one kind."""
    first, one = next(iter(silos.items()))
    for name, own in silos.items():
        for what in ("kind", "shape", "dtype", "targets", "labels"):
            if (mine := getattr(own, what)) != (theirs := getattr(one, what)):
                raise DataError(
                    f"silo {name} has {what} {_said(mine)}, {first} {_said(theirs)}; bring both "
                    "into one form, and start another survey"
                )


def require_answered(
    survey: SurveySettings,
    question: FiguresQuestion,
    own: ColumnsReply,
    reply: FiguresReply,
    most: int,
) -> None:
    """Raise ProtocolError unless a reply is well-formed, so that its statistics cannot corrupt the
    others'.

    It must cover exactly the columns asked for, and the labels that the silo has, in cells that are
    neither too small nor too many.

    Args:
        survey: the agreed settings.
        question: the question.
        own: the silo's columns, as it reported them.
        reply: its answer.
        most: most rows that a silo may have.
    """
    _require_asked(question, own, reply)
    _require_large(survey, reply, most)


def _require_asked(question: FiguresQuestion, own: ColumnsReply, reply: FiguresReply) -> None:
    """Raise ProtocolError unless a reply covers exactly the columns asked for, and the labels that
    the silo has.
    """
    numbers = {form.name for form in question.columns if form.kind != "category"}
    names = {form.name for form in question.columns} - numbers
    withheld = {*reply.withheld}
    if (
        {*reply.numbers} != numbers - withheld
        or {*reply.names} != names - withheld
        or withheld - numbers - names
    ):
        raise ProtocolError("its answer is of other columns than were asked about")
    labels = own.labels[:1] if own.targets == "survival" else own.labels
    of_classes = own.targets == "classes"
    if bool(reply.classes) != of_classes or (
        (of_classes or labels) and {*reply.targets} != {*labels}
    ):
        raise ProtocolError("its answer is of other labels than the silo has")


def _require_large(survey: SurveySettings, reply: FiguresReply, most: int) -> None:
    """Raise ProtocolError for cells of too few rows, for too many cells, and for more rows than a
    silo may have.
    """
    told: list[SafeColumn] = [*reply.numbers.values(), *reply.targets.values()]
    if not survey.least <= reply.rows <= most:
        raise ProtocolError(f"its answer is of {reply.rows} rows, not of {survey.least} to {most}")
    if any(len(column.counts) > survey.cells for column in told):
        raise ProtocolError(f"its answer has more than {survey.cells} cells a column")
    told += [*reply.names.values(), *([reply.classes] if reply.classes else [])]
    if any(
        0 < n < survey.least
        for n in (*(n for c in told for n in (*c.counts, c.rest)), *reply.words.values())
    ):
        raise ProtocolError(f"its answer reports fewer than {survey.least} rows")


def _said(value: object) -> str:
    return listed([*map(str, value)]) or "none" if isinstance(value, tuple) else str(value)


def _kinds(forms: Iterable[ColumnForm]) -> set[ColumnKind]:
    return {form.kind for form in forms}


def _form(forms: Sequence[ColumnForm]) -> ColumnForm:
    kind = "category" if "category" in _kinds(forms) else forms[0].kind
    return ColumnForm(name=forms[0].name, kind=kind, missing=_markers(forms)[:MARKERS])


def _markers(forms: Iterable[ColumnForm]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(marker for form in forms for marker in form.missing))
