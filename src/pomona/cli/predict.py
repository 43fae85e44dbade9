"""``pomona predict`` and ``pomona export``: using a saved personal model."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from cyclopts import Parameter

from pomona.cli.output import Json, emit, print_table, shown, talk
from pomona.core.errors import ConfigError, DataError, near
from pomona.core.files import publish, writing
from pomona.core.table import Table, csv_text, of_records

MOST_COLUMNS = 20  # outputs in a terminal's table

OwnCode = Annotated[
    bool,
    Parameter(
        negative="",
        help="import and run the module:function that the file names; only if you trust it",
    ),
]


To = Annotated[
    Literal["safetensors", "pt2", "onnx"],
    Parameter(help="plain tensors, a program for torch.export.load, or ONNX"),
]
Masks = Annotated[
    Path | None,
    Parameter(
        help="for segmentation: the file of class numbers to write: .nii.gz on the grid of the one "
        "volume given, a folder with a file for each input, or .npz with an array masks"
    ),
]


def predict(
    model: Path,
    *inputs: Path,
    id_: Annotated[
        str | None, Parameter(name="--id", help="column of a table that identifies each sample")
    ] = None,
    client: Annotated[
        str | None,
        Parameter(help="of a run: the client whose model answers all samples, by name or place"),
    ] = None,
    client_column: Annotated[
        str | None,
        Parameter(help="of a run: column of a table that names each row's client"),
    ] = None,
    csv: Annotated[
        Path | None, Parameter(help="the .csv file to write, with every answer and output")
    ] = None,
    masks: Masks = None,
    own_code: OwnCode = False,
    json: Json = False,
) -> None:
    """Predict with clients' personal models.

    With a run folder, each row of a table is answered by the model of the client that it names.
    The answer has the name of the model's client, and the probability of every class or label,
    every target in its unit, or, for a mask, the pixels of every class.

    Parameters
    ----------
    model
        a run folder, or a file of its models/
    inputs
        images (resized to what the model saw), volumes, folders with a DICOM series, tables
        (.csv, .tsv, .txt, .data or .parquet, written as the training's were; columns are found by
        name if that had names), .txt files with a text a line for a model of texts, or .npz files
        with an array x
    """
    if not inputs:
        raise DataError("no input given; name images, tables, .txt or .npz files")
    if not model.is_dir():
        if named := client or client_column:
            raise DataError(
                f"{model} is the model of one client; give its run folder to choose by {named!r}"
            )
        answered = _by_one(model, inputs, id_, masks, own_code)
    elif client is not None:
        answered = _by_one(_model_file(model, client), inputs, id_, masks, own_code)
    elif masks:
        raise DataError("--masks is for one client's model; name the client by --client")
    else:
        answered = _by_own(model, inputs, client_column, id_, own_code)
    _written(answered, csv, json)


class Answered(NamedTuple):
    """Answers to samples, and whose: one client, or each row's own, if empty."""

    rows: list[dict[str, Any]]
    client: str = ""

    @property
    def title(self) -> str:
        """Which model gives the answers."""
        return f"the model of {self.client}" if self.client else "the model of each row's client"


def _written(answered: Answered, csv: Path | None, json: bool) -> None:
    rows, client = answered
    if csv:
        with writing(csv):
            publish(csv, [csv_text([_flat(row, True) for row in rows]).encode()])
        talk(f"{len(rows)} answers of {shown(answered.title)}: {csv}")
    if json:
        emit([{"client": client, **row} if client else row for row in rows])
    elif not csv:
        print_table(answers(rows, answered.title))


def _model_file(run: Path, client: str) -> Path:
    """Return the file of a client's model in a run. Raises as ``client_place``."""
    from pomona.record.run_folder import load, require_unchanged

    name = f"models/client-{client_place(client, load(run).about['clients']):02d}.safetensors"
    require_unchanged(run, name)
    return run / name


def _by_own(
    run: Path, inputs: Sequence[Path], column: str | None, id_column: str | None, own_code: bool
) -> Answered:
    """Answer each row by its own client's model."""
    from pomona.data.formats import format_of
    from pomona.personal import by_client
    from pomona.record.run_folder import load

    if apart := next((path for path in inputs if format_of(path) is None), None):
        raise DataError(
            f"{apart} names no clients, {run} has a model for each; name one by --client"
        )
    result, rows = load(run), list[dict[str, Any]]()
    for path in inputs:
        answered = by_client.predict(result, path, column, id_column, own_code)
        for note in (*answered.notes, *by_client.remarks(run, path)):
            talk(f"note: {note}")
        for k, answer in enumerate(answered.rows):
            id_ = {"id": answered.ids[k]} if answered.ids else {}
            rows.append({"client": answer.pop("client"), "input": f"{path}[{k}]", **id_, **answer})
    return Answered(rows)


def _by_one(
    model: Path,
    inputs: Sequence[Path],
    id_column: str | None,
    masks: Path | None,
    own_code: bool,
) -> Answered:
    """Answer each sample by one client's model; masks go to a file of their own."""
    from pomona.data.formats import format_of
    from pomona.personal import PersonalModel, by_client, mask_files
    from pomona.personal.inputs import read

    net = PersonalModel.load(model, own_code)
    if masks and net.about.targets != "segmentation":
        raise DataError(
            f"--masks is for models of masks, and {model} answers with {net.about.targets}; leave "
            "it out"
        )
    rows: list[dict[str, Any]] = []
    maps: list[mask_files.PredictedMask] = []
    run = by_client.run_of(model)
    for path in inputs:
        samples = read(path, net.about, id_column)
        known = by_client.remarks(run, path, net) if run and format_of(path) else []
        for note in filter(None, (samples.note, *known)):
            talk(f"note: {note}")
        for k, answer in enumerate(net.predict(samples)):
            if "mask" in answer:
                mask = answer.pop("mask")
                maps.append(mask_files.PredictedMask(path, mask, samples.grid, samples.sides))
            own = {"id": samples.ids[k]} if samples.ids else {}
            rows.append(
                {"input": f"{path}[{k}]" if len(samples.x) > 1 else str(path), **own, **answer}
            )
    if masks:
        talk(mask_files.write(masks, maps))
    return Answered(rows, net.about.client)


def answers(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    """Return a table of answers; with very many outputs, their columns are only in
    ``--json``.
    """
    each = max(
        (len(value) for row in rows for value in row.values() if isinstance(value, dict)), default=0
    )
    notes = [f"--json names each of the {each} outputs"] if each > MOST_COLUMNS else []
    return of_records([_flat(row, each <= MOST_COLUMNS) for row in rows], title, notes)


def _flat(row: Mapping[str, Any], each: bool) -> dict[str, Any]:
    """Return an answer as a row of a table, with a column for each output if they are few."""
    flat = {k: v for k, v in row.items() if not isinstance(v, dict)}
    if each:
        flat |= {f"P({name})": value for name, value in row.get("probabilities", {}).items()}
        flat |= {f"pixels of {name}": value for name, value in row.get("pixels", {}).items()}
        flat |= {f"P(time > {edge})": value for edge, value in row.get("survival", {}).items()}
        flat |= {f"predicted {name}": value for name, value in row.get("values", {}).items()}
    return flat


def export(
    run: Path,
    *,
    client: Annotated[
        str,
        Parameter(help="name of the client, or its place from 0; name:1 or place:1 if both fit"),
    ],
    to: To,
    out_: Annotated[
        Path | None, Parameter(name="--out", help="the file; default RUN/exports/client-NN.FORMAT")
    ] = None,
    own_code: OwnCode = False,
    json: Json = False,
) -> None:
    """Export a client's personal model for other programs, with its card beside it.

    A program (pt2) and an ONNX file accept raw samples and normalise them; the tensors
    (safetensors) are just the network's state_dict.

    Parameters
    ----------
    run
        a folder that `pomona run` wrote
    """
    from pomona.core.files import own
    from pomona.record.run_folder import load, require_unchanged

    number = client_place(client, load(run).about["clients"])
    name = f"models/client-{number:02d}.safetensors"
    require_unchanged(run, name)
    exported(
        run / name, out_ or own(run, "exports", f"client-{number:02d}.{to}"), to, own_code, json
    )


def exported(model: Path, path: Path, to: To, own_code: bool, json: bool) -> None:
    """Write a file's model for other programs, with its card, and print where."""
    from pomona.personal import PersonalModel, model_card
    from pomona.personal.export import export as write
    from pomona.personal.export import inputs

    net = PersonalModel.load(model, own_code)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write(net, path, to)
        if model_card.write_of_export(model, path) is None:
            talk(f"note: {path} has no card: {model} has none, or one of an earlier round")
    if json:
        emit(
            {
                "written": path,
                "client": net.about.client,
                "model": net.about.model,
                "inputs": inputs(net),
            }
        )
    else:
        print(path)


def client_place(word: str, names: Sequence[str]) -> int:
    """Return the index of the client that a user means, by name or by place from 0.

    If clients are named by numbers, a number is accepted only if it means the same client both
    ways; ``name:1`` and ``place:1`` are unambiguous.

    Raises:
        ConfigError: no such client, or an ambiguous number.
    """
    named, placed, either = _meanings(word, names)
    if named is not None and placed in (None, named):
        return named
    if placed is None:
        raise ConfigError(
            f"no client {word!r}; give a number from 0 to {len(names) - 1}, or a name: "
            f"{near(word, names)}"
        )
    if named is None and not either:
        return placed
    other = "no client has that name" if named is None else f"name:{word} is the one of that name"
    raise ConfigError(
        f"client {word}: place:{word} is the client {names[placed]!r}, {other}; write which is "
        "meant"
    )


def _meanings(word: str, names: Sequence[str]) -> tuple[int | None, int | None, bool]:
    """Return the client of a name, the client at a place, and whether a number is ambiguous."""
    kind, _, rest = word.partition(":")
    kind, given = (kind, rest) if kind in ("name", "place") else ("", word)
    named = names.index(given) if kind != "place" and given in names else None
    placed = (
        int(given) if kind != "name" and given.isdecimal() and int(given) < len(names) else None
    )
    return named, placed, not kind and any(name.isdecimal() for name in names)
