"""``pomona predict`` and ``pomona export``: using a saved personal model."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from pomona.cli.output import Json, emit, print_table, shown, talk
from pomona.core.errors import ConfigError, DataError, near
from pomona.core.files import publish, writing
from pomona.core.table import Table, csv_text, of_records

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pomona.personal import PersonalModel

MOST_COLUMNS = 20  # outputs in a terminal's table

OwnCode = Annotated[
    bool,
    Parameter(
        negative="",
        help="import and run the module:function that the file names; only if you trust it",
    ),
]


Masks = Annotated[
    Path | None,
    Parameter(
        help="for segmentation: the .npz file to write, with an array masks of class numbers"
    ),
]


def predict(
    model: Path,
    *inputs: Path,
    id_: Annotated[
        str | None, Parameter(name="--id", help="column of a table that identifies each sample")
    ] = None,
    csv: Annotated[
        Path | None, Parameter(help="the .csv file to write, with every answer and output")
    ] = None,
    masks: Masks = None,
    own_code: OwnCode = False,
    json: Json = False,
) -> None:
    """Predict with a client's personal model.

    The answer has the name of the model's client, and the probability of every class or label,
    every target in its unit, or, for a mask, the pixels of every class.

    Parameters
    ----------
    model
        a file of models/ in a run folder
    inputs images (resized to what the model saw), volumes, folders with a DICOM series, tables
        (.csv, .tsv, .txt, .data or .parquet, written as the training's were; columns are found by
        name if that had names), .txt files with a text a line for a model of texts, or .npz files
        with an array x
    """
    from pomona.personal import PersonalModel

    if not inputs:
        raise DataError("no input given; name images, tables, .txt or .npz files")
    net = PersonalModel.load(model, own_code)
    if masks and net.about.targets != "segmentation":
        raise DataError(
            f"--masks is for models of masks, and {model} answers with {net.about.targets}; leave "
            "it out"
        )
    rows, maps = _answered(net, inputs, id_)
    client = net.about.client
    if masks:
        save_masks(masks, maps)
        talk(f"masks of {len(maps)} samples, in the order of the answers: {masks}")
    if csv:
        with writing(csv):
            publish(csv, [csv_text([_flat(row, True) for row in rows]).encode()])
        talk(f"{len(rows)} answers of the model of {shown(client)}: {csv}")
    if json:
        emit([{"client": client, **row} for row in rows])
    elif not csv:
        print_table(answers(rows, client))


def _answered(
    net: "PersonalModel", inputs: Sequence[Path], id_column: str | None
) -> tuple[list[dict[str, Any]], list["NDArray[np.uint8]"]]:
    """Return a model's answer to each sample of some files, and apart from them the masks."""
    from pomona.personal.inputs import read

    rows: list[dict[str, Any]] = []
    maps: list[NDArray[np.uint8]] = []
    for path in inputs:
        samples = read(path, net.about, id_column)
        if samples.note:
            talk(f"note: {samples.note}")
        for k, answer in enumerate(net.predict(samples)):
            if "mask" in answer:
                maps.append(answer.pop("mask"))
            own = {"id": samples.ids[k]} if samples.ids else {}
            rows.append(
                {"input": f"{path}[{k}]" if len(samples.x) > 1 else str(path), **own, **answer}
            )
    return rows, maps


def save_masks(path: Path, maps: Sequence["NDArray[np.uint8]"]) -> None:
    """Write masks as an array ``masks`` (n, *sides) in an .npz archive."""
    import numpy as np

    packed = BytesIO()
    np.savez_compressed(packed, masks=np.stack(maps))
    with writing(path):
        publish(path, [packed.getvalue()])


def answers(rows: Sequence[Mapping[str, Any]], client: str) -> Table:
    """Return a table of a model's answers; with very many outputs, their columns are only in
    ``--json``.
    """
    each = max(
        (len(value) for row in rows for value in row.values() if isinstance(value, dict)), default=0
    )
    notes = [f"--json names each of the {each} outputs"] if each > MOST_COLUMNS else []
    return of_records(
        [_flat(row, each <= MOST_COLUMNS) for row in rows], f"the model of {client}", notes
    )


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
    to: Annotated[
        Literal["safetensors", "pt2", "onnx"],
        Parameter(help="plain tensors, a program for torch.export.load, or ONNX"),
    ],
    out_: Annotated[
        Path | None, Parameter(name="--out", help="the file; default RUN/exports/client-NN.FORMAT")
    ] = None,
    own_code: OwnCode = False,
    json: Json = False,
) -> None:
    """Export a client's personal model for other programs.

    A program (pt2) and an ONNX file accept raw samples and normalise them; the tensors
    (safetensors) are just the network's state_dict.

    Parameters
    ----------
    run
        a folder that `pomona run` wrote
    """
    from pomona.core.files import own
    from pomona.personal import PersonalModel
    from pomona.personal.export import export as write
    from pomona.personal.export import inputs
    from pomona.record.run_folder import load, require_unchanged

    number = client_place(client, load(run).about["clients"])
    name = f"models/client-{number:02d}.safetensors"
    require_unchanged(run, name)
    net = PersonalModel.load(run / name, own_code)
    path = out_ or own(run, "exports", f"client-{number:02d}.{to}")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write(net, path, to)
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
