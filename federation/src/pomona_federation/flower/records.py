"""What server and clients of a plain Flower app send each other: a task or an answer as JSON, and
tensors as arrays of Flower.

Everything that is read here comes from another party. Texts have bounded types, and an array is
read only if its name, shape, dtype and length are those that the method expects.
"""

from collections.abc import Mapping
from io import BytesIO
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.lib import format as npy
from pydantic import Field, ValidationError
from torch import Tensor, nn

from pomona.core import bounds
from pomona.core.bounds import MAX_CLIENTS, ClientId, Count, Label, Line, Measured, Number, Table
from pomona.core.errors import ProtocolError
from pomona.core.settings import Settings
from pomona.methods.base import Rows
from pomona.metrics.metric import Score
from pomona.storage.safetensors_stream import quoted
from pomona.storage.tensor_validation import non_finite

KEY, ARRAYS, INITIAL, BODY = "pomona", "arrays", "pomona.initial", "body"
HELLO = "pomona.hello"
LONGEST = 2**20  # characters of a body
MAX_TENSORS = 10**5  # of a model
HEADER = 2**12  # bytes before the numbers of an array
Body = TypeVar("Body", bound=Settings)
Ids = Annotated[tuple[ClientId, ...], Field(max_length=MAX_CLIENTS)]


class Introduction(Settings):
    """Who a client is, in answer to a record ``HELLO``: the number of its part of the data, if
    Flower gives it one; its samples by split; the tensors of its model, in their order.
    """

    partition: Count | None
    samples: Table[Label, Count] = Field(max_length=3)
    model: Table[Line, Line] = Field(max_length=MAX_TENSORS)


class Task(Settings):
    """A client's task of a round; see ``federation.exchange.ClientRequest``.

    Attributes:
        settings: those of the run, without what only its user's code has.
        sizes: training samples by client.
        committed: the last round of this client that the server has used; 0 before the first.
        downlink: by entry whose rows are sent; one's own id marks an empty place.
    """

    settings: dict[str, Any]
    number: Number
    client: ClientId
    sizes: tuple[Count, ...] = Field(min_length=1, max_length=MAX_CLIENTS)
    trains: bool
    watched: tuple[Literal["received", "trained"], ...] = Field(max_length=2)
    keep: bool
    best: int = Field(ge=-1, le=10**6)
    committed: Number
    downlink: Table[Label, Ids] = Field(max_length=20)


class Answer(Settings):
    """A client's answer to a task; ``refused``: its fault is one of settings, not of this round."""

    number: Number
    samples: Count
    loss: Measured | None = None
    scores: tuple[Score, ...] = Field((), max_length=100)
    seconds: float = Field(0.0, ge=0, le=1e9)
    fault: Line = ""
    refused: bool = False


def written(body: Settings) -> ConfigRecord:
    """Return a body as a record of Flower."""
    return ConfigRecord({BODY: body.model_dump_json()})


def read(content: RecordDict, body_type: type[Body]) -> Body:
    """Return the body of a message. Raises ProtocolError."""
    record = content.config_records.get(KEY)
    text = record.get(BODY) if record is not None else None
    if not isinstance(text, str) or len(text) > LONGEST:
        raise ProtocolError(
            "the message has no text of Pomona's; give strategy(...) to the ServerApp, and "
            "personalize(...) to the ClientApp"
        )
    try:
        return body_type.model_validate_json(text)
    except ValidationError as fault:
        raise ProtocolError(f"the message is not as expected ({bounds.first(fault)})") from None


def arrays(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    """Return named tensors as a record of Flower."""
    return ArrayRecord({name: Array(t.detach().cpu().numpy()) for name, t in tensors.items()})


def row_keys(name: str, rows: Rows, index: tuple[int, ...], client: int) -> dict[str, int]:
    """Return the names of an entry's rows in a message, with the client whose row each is."""
    if rows.index.dim() == 1:
        return {name: 0}
    return {f"{name}.{j}": j for j in index if j != client}


def tensors(record: ArrayRecord | None, examples: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of another party's record, which must have the names, shapes and dtypes of
    the examples, and finite numbers.

    Raises ProtocolError.
    """
    record = ArrayRecord() if record is None else record
    if record.keys() != examples.keys():
        unmatched = sorted(record.keys() ^ examples.keys())[0][:100]
        raise ProtocolError(f"array {unmatched!r} is missing, or not expected")
    decoded = {name: _tensor(name, record[name], example) for name, example in examples.items()}
    if problem := non_finite(decoded):
        raise ProtocolError(problem)
    return decoded


def _tensor(name: str, array: Array, example: Tensor) -> Tensor:
    """Return an array of exactly a form; nothing is allocated before its header has been read."""
    expected = torch.empty(0, dtype=example.dtype).numpy().dtype
    shape, size = tuple(example.shape), example.numel() * example.element_size()
    if array.stype != "numpy.ndarray" or not size < len(array.data) <= size + HEADER:
        raise ProtocolError(f"array {name!r} is not one of NumPy with {size} bytes")
    file = BytesIO(array.data)
    try:
        version = npy.read_magic(file)
        header = npy.read_array_header_1_0(file, max_header_size=HEADER)
    except ValueError as fault:
        raise ProtocolError(f"array {name!r} cannot be read ({fault})"[:300]) from None
    content = array.data[file.tell() :]
    if version != (1, 0) or header != (shape, header[1], expected) or len(content) != size:
        raise ProtocolError(f"array {name!r} is {header[0]}, {header[2]}; expected {shape}")
    values = np.frombuffer(bytearray(content), expected)
    if example.dtype == torch.bool and (values.view(np.uint8) > 1).any():
        raise ProtocolError(f"array {name!r} has truth values other than 0 and 1")
    ordered = values.reshape(shape, order="F" if header[1] else "C")
    return torch.from_numpy(np.ascontiguousarray(ordered)).reshape(shape)


def layout_of(model: nn.Module) -> dict[str, str]:
    """Return shape and dtype of a model's tensors, as texts by name."""
    return {name: f"{tuple(t.shape)} {t.dtype}" for name, t in model.state_dict().items()}


def difference(model: Mapping[str, str], server: Mapping[str, str]) -> str:
    """Return how the layout of a client's model differs from the server's; empty if it does not."""
    for name in (*server, *model):
        local, remote = server.get(name), model.get(name)
        if local != remote:
            layouts = f"{remote or 'missing'} there and {local or 'missing'} at the server"
            return f"tensor {quoted(name)} is {layouts}"
    return "" if [*model] == [*server] else "its tensors are in another order than the server's"
