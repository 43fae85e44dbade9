"""Answers to the rows of a table, each by the model of its own client, and what a table has to do
with the training of its run.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pomona.core.errors import DataError, listed
from pomona.core.files import text
from pomona.core.toml import read_text
from pomona.data import cell_values
from pomona.partition.partition import Partition
from pomona.personal import distant_inputs
from pomona.personal.inputs import Samples, cells_of, opened, read
from pomona.personal.model import PersonalModel
from pomona.record.result import NAME, Result

if TYPE_CHECKING:
    from pomona.personal.memory import Memories

CLIENTS_SHOWN = 3  # clients whose distant columns are named


class Answers(NamedTuple):
    """Answers as of ``PersonalModel.predict``, each with its ``client``; a name for each row, if
    requested; and remarks for display.
    """

    rows: list[dict[str, Any]]
    ids: Sequence[str]
    notes: tuple[str, ...]


def predict(
    result: Result,
    source: Any,
    client_column: str | int | None = None,
    id_column: str | None = None,
    own_code: bool = False,
    memories: "Memories | None" = None,
) -> Answers:
    """Answer each row of a table by the model of the client that it names.

    Args:
        result: of a folder or in memory.
        source: a table's path or a frame.
        client_column: that names each row's client; by default the run's ``data.client_column``.
        id_column: that names each row.
        own_code: as for ``PersonalModel.load``.
        memories: of the clients, that answer together with their models.

    Raises:
        DataError: no column of clients is known, rows of clients without a model in this run, or as
            ``pomona.personal.inputs.read``.
        StorageError: as ``PersonalModel.load``.
    """
    column = _client_column(result, client_column)
    names = {result.about["clients"][number]: number for number in result.models}
    if not names:
        raise DataError(f"{result.folder or 'this run'} has no models; finish the run first")
    first = PersonalModel.of(result, next(iter(names.values())), own_code)
    samples = read(source, first.about, id_column, column)
    clients = list(map(cell_values.name, samples.clients))
    _require_models(str(source), clients, names)
    answers: list[dict[str, Any]] = [{}] * len(clients)
    distant: dict[str, list[str]] = {}
    for name in dict.fromkeys(clients):
        model = PersonalModel.of(result, names[name], own_code)
        alike = model.about.preprocessing == first.about.preprocessing
        x = samples.x if alike else read(source, model.about, id_column, column).x
        rows = [row for row, client in enumerate(clients) if client == name]
        if lines := distant_inputs.remarks(x[rows], model.about):
            distant[name] = lines
        answering = memories.of(names[name], model) if memories else model
        for row, answer in zip(rows, answering.predict(Samples(x[rows])), strict=True):
            answers[row] = {"client": name, **answer}
    note = (
        f"{source}: each row is answered by its own client's model: {with_counts(Counter(clients))}"
    )
    notes = filter(None, [samples.note, *_distant_columns(str(source), distant), note])
    return Answers(answers, samples.ids, tuple(notes))


def _client_column(result: Result, column: str | int | None) -> str | int:
    """Return the column that names each row's client. Raises DataError if none is known."""
    column = result.config["data"].get("client_column") if column is None else column
    if column is None:
        raise DataError(
            f"{result.folder or 'this run'} does not record which column names each row's client; "
            "name it with --client-column, or one client for all rows with --client"
        )
    return column


def _distant_columns(source: str, lines: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the lines on the distant columns of some clients, and the names of the others."""
    clients, further = [*lines][:CLIENTS_SHOWN], [*lines][CLIENTS_SHOWN:]
    shown = [f"{source}, {client}: {line}" for client in clients for line in lines[client]]
    others = f"{source}: numbers as distant in the rows of {listed(further, 8)}"
    return [*shown, others] if further else shown


def _require_models(source: str, clients: Sequence[str], names: Collection[str]) -> None:
    """Raise DataError for rows of clients without a model."""
    if unknown := Counter(name for name in clients if name not in names):
        raise DataError(
            f"{source}: {unknown.total()} of {len(clients)} rows are of clients without a model "
            f"here: {with_counts(unknown)}; the run has {listed([*names])}; leave these rows "
            "out, or answer all rows of a table by one client's model: --client NAME"
        )


def with_counts(numbers: Mapping[str, int]) -> str:
    """Return names with their numbers, in one phrase."""
    return listed([f"{name or '(no name)'} ({count})" for name, count in numbers.items()], 8)


def run_of(model: Path) -> Path | None:
    """Return the folder of the run that a file of its ``models/`` lies in, if it does."""
    folder = model.absolute().parent.parent
    inside = NAME.fullmatch(model.name) and model.absolute().parent.name == "models"
    return folder if inside and (folder / "config.toml").is_file() else None


def remarks(run: Path, table: Path, model: PersonalModel | None = None) -> list[str]:
    """Remark on rows of a table on which this run was trained; and, for one model, on rows that
    name other clients than its own.
    """
    settings = read_text(text(run / "config.toml")).get("data", {})
    return [
        *_trained(run, settings, table),
        *(_foreign_rows(run, settings, table, model) if model else ()),
    ]


def _trained(run: Path, settings: Mapping[str, Any], table: Path) -> list[str]:
    files = [settings.get("path"), *(client.get("train") for client in settings.get("clients", ()))]
    paths = [Path(file).expanduser() for file in files if file]
    paths += [path / f"train{table.suffix}" for path in paths if path.is_dir()]
    if not any(path.exists() and path.samefile(table) for path in paths):
        return []
    partition = Partition.load(run / "partition.json")
    rows = sum(len(client.train) for client in partition.clients)
    return [
        f"{table} is a table on which this run was trained: {rows} of the run's rows were training "
        "rows; their answers are better than those for new rows"
    ]


def _foreign_rows(
    run: Path, settings: Mapping[str, Any], table: Path, model: PersonalModel
) -> list[str]:
    column = settings.get("client_column")
    if column is None:
        return []
    try:
        clients = cells_of(opened(table, model.about), column)
    except DataError:  # without such a column
        return []
    foreign = Counter(map(cell_values.name, clients))
    foreign.pop(model.about.client, None)
    if not foreign:
        return []
    return [
        f"{table}: {foreign.total()} of {len(clients)} rows belong to other clients than "
        f"{model.about.client}, the client of this model: {with_counts(foreign)}; to use each "
        f"row's own client's model: pomona predict {run} {table}"
    ]
