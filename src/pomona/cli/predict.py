"""``pomona predict`` and ``pomona export``: using a saved personal model."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from cyclopts import Parameter
from cyclopts.validators import Number

from pomona.cli.output import Json, activity, echo_stderr, emit, print_table, printable, respond
from pomona.core.errors import ConfigError, DataError, StorageError, listed, refuse, suggestion
from pomona.core.files import publish, writing
from pomona.core.registry import own_code_barred
from pomona.core.table import Table, csv_text, of_records

if TYPE_CHECKING:
    from pomona.personal.inputs import Samples
    from pomona.personal.memory import Memories
    from pomona.record.model_metadata import ModelMetadata

MAX_COLUMNS = 20  # outputs in a terminal's table

OwnCode = Annotated[
    bool,
    Parameter(
        negative="",
        help="import and run the module:function that the file names; only if you trust it",
    ),
]


ExportFormat = Annotated[
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
Neighbours = Annotated[
    int,
    Parameter(
        validator=Number(gte=0, lte=10**4),
        help="kNN-Per: answer together with that many nearest training rows of the model's client, "
        "such as 10; the run's data are read again",
    ),
]


def predict(
    model: Path,
    *inputs: Path,
    id_: Annotated[str | None, Parameter(name="--id")] = None,
    client: str | None = None,
    client_column: str | None = None,
    csv: Path | None = None,
    masks: Masks = None,
    neighbours: Neighbours = 0,
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
        images (resized to what the model saw), volumes, folders of these or of a DICOM series,
        tables (.csv, .tsv, .txt, .data or .parquet, in the format of the training tables; columns
        are matched by name if those had names), .txt files with one text per line for a model of
        texts, or .npz files with an array x
    id_
        column of a table that identifies each sample
    client
        for a run folder: use the model of this client (name or number) for all samples
    client_column
        for a run folder: column of the table that names each row's client
    csv
        the .csv file to write, with every answer and output
    """
    if not inputs:
        raise DataError("no input given; name images, tables, .txt or .npz files")
    file = _single_model(model, client, client_column)
    if masks and not file:
        raise DataError("--masks is for one client's model; name the client by --client")
    with activity(f"predicting for {listed([path.name for path in inputs], 3)}"):
        memories = _memories(model, neighbours) if neighbours else None
        with own_code_barred(not own_code):
            if file:
                answered = _by_one_client(file, inputs, id_, masks, own_code, memories)
            else:
                answered = _by_row_clients(model, inputs, client_column, id_, own_code, memories)
    if memories:
        _print_notes([memories.note])
    _output(answered, csv, json)


def _single_model(model: Path, client: str | None, client_column: str | None) -> Path | None:
    """Return the file of the one model that answers all samples; None if each row's client's does.

    Raises StorageError and DataError for arguments that do not fit.
    """
    if not model.exists():
        raise StorageError(f"{model} does not exist; name a run folder, or a file of its models/")
    if model.is_dir():
        return None if client is None else _model_file(model, client)
    if choice := client or client_column:
        raise DataError(
            f"{model} is the model of one client; give its run folder to use {choice!r}"
        )
    return model


class Predictions(NamedTuple):
    """Answers to samples, and the client whose model gave them; empty if each row has its own."""

    rows: list[dict[str, Any]]
    client: str = ""

    @property
    def title(self) -> str:
        """Which model gives the answers."""
        return f"the model of {self.client}" if self.client else "the model of each row's client"


def _output(answered: Predictions, csv: Path | None, json: bool) -> None:
    rows, client = answered
    if csv:
        with writing(csv):
            publish(csv, [csv_text([_flat(row, True) for row in rows]).encode()])
        echo_stderr(f"{len(rows)} answers of {printable(answered.title)}: {csv}")
    if json:
        emit([{"client": client, **row} if client else row for row in rows])
    elif not csv:
        print_table(answers(rows, answered.title))


def _model_file(run: Path, client: str) -> Path:
    """Return the file of a client's model in a run. Raises as ``client_index``."""
    from pomona.record.run_folder import load, require_unchanged

    name = f"models/client-{client_index(client, load(run).about['clients']):02d}.safetensors"
    require_unchanged(run, name)
    return run / name


def _memories(model: Path, neighbours: int) -> "Memories":
    """Return the memories of a run's clients. Raises DataError for a model outside its run."""
    from pomona.personal import by_client
    from pomona.personal.memory import Memories
    from pomona.record.run_folder import load

    run = model if model.is_dir() else by_client.run_of(model)
    if run is None:
        raise DataError(
            f"{model} is not in its run's folder, whose record says where the training rows are; "
            "leave --neighbours out"
        )
    return Memories(load(run), neighbours)


def _by_row_clients(
    run: Path,
    inputs: Sequence[Path],
    column: str | None,
    id_column: str | None,
    own_code: bool,
    memories: "Memories | None",
) -> Predictions:
    """Answer each row by its own client's model."""
    from pomona.data.formats import format_of
    from pomona.personal import by_client
    from pomona.record.run_folder import load

    if unnamed := next((path for path in inputs if format_of(path) is None), None):
        raise DataError(
            f"{unnamed} does not name clients, and {run} has a model for each; choose one with "
            "--client"
        )
    result, rows = load(run), list[dict[str, Any]]()
    for path in inputs:
        answered = by_client.predict(result, path, column, id_column, own_code, memories)
        _print_notes((*answered.notes, *by_client.remarks(run, path)))
        for k, answer in enumerate(answered.rows):
            client = answer.pop("client")
            rows.append({"client": client, **_named(f"{path}[{k}]", answered.ids, k, answer)})
    return Predictions(rows)


def _by_one_client(
    model: Path,
    inputs: Sequence[Path],
    id_column: str | None,
    masks: Path | None,
    own_code: bool,
    memories: "Memories | None",
) -> Predictions:
    """Answer each sample by one client's model; masks go to a file of their own."""
    from pomona.data.formats import format_of
    from pomona.personal import PersonalModel, by_client, mask_files

    net = PersonalModel.load(model, own_code)
    if masks:
        _require_segmentation(model, net.about.targets)
    rows: list[dict[str, Any]] = []
    maps: list[mask_files.PredictedMask] = []
    run, answering = by_client.run_of(model), net.predict
    if memories:
        number = memories.result.about["clients"].index(net.about.client)
        answering = memories.of(number, net).predict
    for path, samples in _read(inputs, net.about, id_column):
        remarks = by_client.remarks(run, path, net) if run and format_of(path) else []
        _print_notes(filter(None, (samples.note, *remarks)))
        several = len(samples.x) > 1
        for k, answer in enumerate(answering(samples)):
            if (mask := answer.pop("mask", None)) is not None:
                maps.append(mask_files.PredictedMask(path, mask, samples.grid, samples.sides))
            rows.append(_named(f"{path}[{k}]" if several else str(path), samples.ids, k, answer))
    if masks:
        echo_stderr(mask_files.write(masks, maps))
    return Predictions(rows, net.about.client)


def _require_segmentation(model: Path, targets: str) -> None:
    if targets != "segmentation":
        raise DataError(
            f"--masks is for segmentation models, and {model} predicts {targets}; leave it out"
        )


def _read(
    inputs: Sequence[Path], metadata: "ModelMetadata", id_column: str | None
) -> Iterator[tuple[Path, "Samples"]]:
    """Yield each file with its samples; of a folder, those that hold no image are left out.

    Raises DataError for all unreadable images together, as in training.
    """
    from pomona.data.images.image_file import NoPixelsError
    from pomona.personal.inputs import read

    volumes, images = len(metadata.sample_shape) == 4, metadata.kind == "image"
    faults: list[DataError] = []
    for path in _image_files(inputs, volumes) if images else inputs:
        try:
            samples = read(path, metadata, id_column)
        except DataError as fault:
            if isinstance(fault, NoPixelsError) and path not in inputs:
                _print_notes([f"{fault}; it is left out"])
            else:
                faults.append(fault)
        else:
            if not faults:
                yield path, samples
    if len(faults) == 1:
        raise faults[0]
    refuse(inputs[0] if len(inputs) == 1 else "the input", [*map(str, faults)])


def _image_files(paths: Iterable[Path], volumes: bool) -> Iterator[Path]:
    """Yield the paths, in place of a folder the images in it. Raises DataError if it has none."""
    from pomona.personal import image_inputs

    for path in paths:
        images, remarks = image_inputs.files(path, volumes)
        _print_notes(remarks)
        if not images:
            raise DataError(f"{path} has no images; name a folder with images or a DICOM series")
        yield from images


def _print_notes(notes: Iterable[str]) -> None:
    for note in notes:
        echo_stderr(f"note: {note}")


def _named(
    name: str, ids: Sequence[str] | None, k: int, answer: Mapping[str, Any]
) -> dict[str, Any]:
    """Return an answer after its input and, if it has one, its id."""
    return {"input": name, **({"id": ids[k]} if ids else {}), **answer}


def answers(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    """Return a table of answers; with very many outputs, their columns are only in
    ``--json``.
    """
    width = max(
        (len(value) for row in rows for value in row.values() if isinstance(value, dict)), default=0
    )
    notes = [f"--json names each of the {width} outputs"] if width > MAX_COLUMNS else []
    return of_records([_flat(row, width <= MAX_COLUMNS) for row in rows], title, notes)


def _flat(row: Mapping[str, Any], expand: bool) -> dict[str, Any]:
    """Return an answer as a row of a table, with a column for each output if they are few."""
    flat = {k: v for k, v in row.items() if not isinstance(v, dict)}
    if expand:
        flat |= {f"P({name})": value for name, value in row.get("probabilities", {}).items()}
        flat |= {f"pixels of {name}": value for name, value in row.get("pixels", {}).items()}
        flat |= {f"P(time > {edge})": value for edge, value in row.get("survival", {}).items()}
        flat |= {f"predicted {name}": value for name, value in row.get("values", {}).items()}
    return flat


def export(
    run: Path,
    *,
    client: str,
    to: ExportFormat,
    path: Annotated[Path | None, Parameter(name="--out")] = None,
    own_code: OwnCode = False,
    json: Json = False,
) -> None:
    """Export a client's personal model for other programs, with its card.

    A program (pt2) and an ONNX file accept raw samples and normalise them; the tensors
    (safetensors) are just the network's state_dict.

    Parameters
    ----------
    run
        a folder that `pomona run` wrote
    client
        name of the client, or its number from 0 unless names are numbers
    path
        the file; default RUN/exports/client-NN.FORMAT
    """
    from pomona.core.files import safe_path
    from pomona.record.run_folder import load, require_unchanged

    number = client_index(client, load(run).about["clients"])
    name = f"models/client-{number:02d}.safetensors"
    require_unchanged(run, name)
    export_model(
        run / name,
        path or safe_path(run, "exports", f"client-{number:02d}.{to}"),
        to,
        own_code,
        json,
    )


def export_model(
    model: Path, path: Path, file_format: ExportFormat, own_code: bool, json: bool
) -> None:
    """Write a file's model for other programs, with its card, and print where."""
    with activity(f"exporting {model.name}"), writing(path):
        from pomona.personal import PersonalModel, model_card  # late: they import PyTorch
        from pomona.personal.export import export as write
        from pomona.personal.export import inputs

        net = PersonalModel.load(model, own_code)
        path.parent.mkdir(parents=True, exist_ok=True)
        write(net, path, file_format)
        card = model_card.write_of_export(model, path)
    if card is None:
        echo_stderr(f"note: no card for {path}: {model} has none, or one of an earlier round")
    metadata = {"client": net.about.client, "model": net.about.model, "inputs": inputs(net)}
    respond(json, {"written": path, **metadata}, path)


def client_index(client: str, names: Sequence[str]) -> int:
    """Return the index of the client that a user names; a number counts clients from 0 where no
    client has a number as its name.

    Raises ConfigError if there is no such client.
    """
    if client in names:
        return names.index(client)
    counted = not any(name.isdecimal() for name in names)
    if counted and client.isdecimal() and int(client) < len(names):
        return int(client)
    numbers = f"a number from 0 to {len(names) - 1}, or " if counted else ""
    raise ConfigError(f"no client {client!r}; give {numbers}a name: {suggestion(client, names)}")
