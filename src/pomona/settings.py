"""The base of every settings record: frozen, typed, and closed to unknown keys."""

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Values a user sets. Unknown keys are errors; values are checked when the record is made."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        allow_inf_nan=False,
        populate_by_name=True,  # for a key that is no name in Python: lambda, lambda_ in code
        serialize_by_alias=True,
    )
