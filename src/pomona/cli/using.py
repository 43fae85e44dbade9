"""``pomona predict`` and ``pomona export``: what comes of a saved personal model."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from zipfile import BadZipFile

import numpy as np
from cyclopts import Parameter
from numpy.typing import NDArray

from pomona.cli.words import emit, out, table
from pomona.errors import ConfigError, DataError, near

if TYPE_CHECKING:
    from pomona.personal import PersonalModel

Json = Annotated[bool, Parameter(name="--json", negative="", help="machine-readable output")]
OwnCode = Annotated[
    bool, Parameter(negative="", help="import and run the module:function that the file names; only if you trust it")
]


def predict(model: Path, *inputs: Path, own_code: OwnCode = False, json: Json = False) -> None:
    """Let a client's personal model answer.

    Parameters
    ----------
    model
        a file of models/ in a run folder
    inputs
        images (resized to what the model saw), .txt files with a text a line, .npz files with an array x, or .csv files
        of numbers without header
    """
    from pomona.personal import PersonalModel

    if not inputs:
        raise DataError("no input given; name image, .npz or .csv files")
    net = PersonalModel.load(model, own_code)
    rows: list[Any] = []
    for path in inputs:
        values = read_inputs(path, net)
        for k, answer in enumerate(net.predict(values)):
            rows.append({"input": f"{path}[{k}]" if len(values) > 1 else str(path), **answer})
    emit(rows) if json else out.print(table([_flat(row) for row in rows]))


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """An answer as a row of a table: what it says of each output in a column of its own."""
    flat: dict[str, Any] = {k: v for k, v in row.items() if not isinstance(v, dict)}
    flat |= {f"P({name})": p for name, p in row.get("probabilities", {}).items()}
    return {**flat, **row.get("values", {})}


def export(
    run: Path,
    *,
    client: Annotated[str, Parameter(help="number of the client from 0, or its name")],
    to: Annotated[
        Literal["safetensors", "pt2", "onnx"],
        Parameter(help="plain tensors, a program for torch.export.load, or ONNX"),
    ],
    out_: Annotated[Path | None, Parameter(name="--out", help="the file; default RUN/exports/client-NN.FORMAT")] = None,
    own_code: OwnCode = False,
    json: Json = False,
) -> None:
    """Write a client's personal model for other programs.

    A program (pt2) and an ONNX file take samples as their owner holds them and normalise them on their own; the tensors
    (safetensors) are the network's state_dict and nothing more.

    Parameters
    ----------
    run
        a folder that `pomona run` wrote
    """
    from pomona.export import export as write
    from pomona.export import inputs
    from pomona.personal import PersonalModel
    from pomona.record import load, writing

    number = client_number(client, load(run).about["clients"])
    net = PersonalModel.load(run / "models" / f"client-{number:02d}.safetensors", own_code)
    path = out_ or run / "exports" / f"client-{number:02d}.{to}"
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write(net, path, to)
    if json:
        emit({"written": path, "client": net.about.client, "model": net.about.model, "inputs": inputs(net)})
    else:
        print(path)


def client_number(word: str, names: Sequence[str]) -> int:
    """The number of the client that a person names, by its name or its number. Raises ConfigError."""
    if word in names:
        return names.index(word)
    if word.isdecimal() and int(word) < len(names):
        return int(word)
    raise ConfigError(f"no client {word!r}; give a number from 0 to {len(names) - 1}, or a name: {near(word, names)}")


def read_inputs(path: Path, net: "PersonalModel") -> NDArray[np.generic]:
    """Inputs as a data set holds them: (n, H, W, C) uint8, (n, F) float32 or (n, T) int32. Raises DataError."""
    from pomona.personal.inputs import encoded

    shape = net.about.input_shape
    try:
        match path.suffix.lower():
            case ".npz":
                with np.load(path, allow_pickle=False) as archive:
                    values = archive["x"]
            case ".txt":
                values = encoded(path.read_text(encoding="utf-8").splitlines(), net.about)
            case ".csv":
                values = np.loadtxt(path, delimiter=",", dtype=np.float32, ndmin=2)
            case _:
                values = _image(path, shape)
    except (OSError, EOFError, KeyError, TypeError, ValueError, BadZipFile) as fault:
        raise DataError(f"{path}: cannot be read as model input ({fault})") from None
    if len(shape) == 3 and values.ndim == 3:
        values = values[..., np.newaxis]
    expected = (shape[1], shape[2], shape[0]) if len(shape) == 3 else shape
    if values.shape[1:] != expected:
        raise DataError(f"{path}: samples have shape {values.shape[1:]}, the model takes {expected}")
    if values.dtype.kind not in "fiub" or not np.isfinite(values.astype(np.float64)).all():
        raise DataError(f"{path}: holds values that are no finite numbers")
    if len(shape) == 3 and values.dtype != np.uint8:
        raise DataError(f"{path}: images must be uint8, 0 to 255, as in training; got {values.dtype}")
    if net.about.vocabulary:
        if not (values == np.clip(np.rint(values), 0, net.about.vocabulary - 1)).all():
            raise DataError(f"{path}: tokens must be whole numbers from 0 to {net.about.vocabulary - 1}")
        values = values.astype(np.int32)
    return np.asarray(values, np.float32) if net.about.kind == "table" else np.asarray(values)


def _image(path: Path, shape: tuple[int, ...]) -> NDArray[np.generic]:
    from PIL import Image, UnidentifiedImageError

    if len(shape) != 3:
        raise DataError(f"{path}: the model takes samples of shape {shape}, no images; give .npz or .csv")
    try:
        with Image.open(path) as image:
            pixels = image.convert("L" if shape[0] == 1 else "RGB").resize(
                (shape[2], shape[1]), Image.Resampling.BILINEAR
            )
    except UnidentifiedImageError:
        raise DataError(f"{path}: no image that can be read; give an image, .npz or .csv") from None
    return np.asarray(pixels).reshape(1, shape[1], shape[2], shape[0])
