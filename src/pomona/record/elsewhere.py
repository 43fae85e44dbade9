"""Scores of each client's model on the other clients' test rows, in ``elsewhere.json`` of a run."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pomona.core.bounds import Line, Measured, Number, first
from pomona.core.errors import StorageError
from pomona.core.files import content, publish, writing
from pomona.metrics.nan_safe import mean_of_known
from pomona.metrics.sampling_error import LEVEL
from pomona.record.paired_gain import Gain, adjusted
from pomona.record.result import Result

FILE = "elsewhere.json"


class Elsewhere(BaseModel):
    """Scores of N clients' models on each other's test rows.

    Attributes:
        rounds: of the run when its models were evaluated.
        scores: (N, N) the run's metric, of the row's model on the column's test rows; None if
            undefined.
        gains: (N,) each model's mean gain, on the others' test rows, over the models of the clients
            whose rows these are; None if undefined.
        notes: what was left out, and why a model may fail.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    rounds: Number
    scores: list[list[Measured | None]]
    gains: list[Gain | None]
    notes: list[Line] = Field([], max_length=100)

    def means(self) -> list[float | None]:
        """Return each model's mean score over the other clients, where it is defined; None where it
        is for none.
        """
        return [
            mean_of_known([*scores[:i], *scores[i + 1 :]]) for i, scores in enumerate(self.scores)
        ]

    @property
    def failing(self) -> list[int]:
        """The clients whose models lose more than the margin elsewhere, jointly at 95 % (Holm)."""
        p = adjusted([gain.p_fails if gain else None for gain in self.gains])
        return [i for i, value in enumerate(p) if value <= LEVEL]

    def save(self, folder: Path) -> None:
        """Write the file of a run's folder. Raises StorageError."""
        with writing(folder / FILE):
            publish(folder / FILE, [self.model_dump_json(indent=1).encode() + b"\n"])


def read(result: Result) -> Elsewhere | None:
    """Return the scores on file in a run's folder; None if there are none.

    Raises StorageError for a damaged file, or one of other clients.
    """
    if result.folder is None or not (path := result.folder / FILE).exists():
        return None
    try:
        scores = Elsewhere.model_validate_json(content(path))
        n = result.clients
        if {n} != {len(scores.gains), len(scores.scores), *map(len, scores.scores)}:
            raise ValueError(f"it is not of {n} clients")
    except (OSError, ValueError) as fault:
        reason = first(fault) if isinstance(fault, ValidationError) else str(fault)
        raise StorageError(
            f"{path} cannot be used ({reason}); repeat: pomona elsewhere {result.folder}"
        ) from None
    return scores
