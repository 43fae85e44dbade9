"""Bounded types for every value from a file, a person or another organisation.

Every record that is read from outside is built from these types and is not checked again later.
Pydantic rejects a bad value when it creates the record, before the value reaches disk, memory or
the terminal.
"""

import json
import re
import unicodedata
from collections.abc import Callable, Mapping
from math import isfinite
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import AfterValidator, Field, StringConstraints, ValidationError, WrapValidator

from pomona.core.errors import PomonaError

MOST_BYTES = 64 * 2**20  # of one JSON text, unless its reader sets another limit
DEEPEST = 64  # nested lists and objects
NESTED = (Mapping, list, tuple)
LONGEST = 500  # characters in a line from another party
ROUNDS = 10**6  # the highest number of a round
FIRST_ROUND = "first round"  # marks a method's key that names the round from which something acts
FirstRound = Annotated[int, Field(ge=1, le=ROUNDS), FIRST_ROUND]
MAX_CLIENTS = 10**4  # the maximum number of clients in a federation
HUGE = 1e100  # keeps sums of squares over samples and silos finite
LARGEST = 1e18  # of a measurement, whose square float32 still holds


def plain(text: str, max_length: int = LONGEST) -> str:
    """Return another party's text as one safe line of at most ``max_length`` characters, without
    control characters.

    Characters that cannot be shown become spaces, so that the text can neither send escape
    sequences to a terminal nor start a new line.
    """
    cleaned = "".join(
        " " if unicodedata.category(c)[0] == "C" or c in "\u2028\u2029" else c
        for c in text[: 4 * max_length]
    )
    line = " ".join(cleaned.split())
    return line if len(line) <= max_length else line[: max_length - 3] + "..."


def without_paths(text: str, max_length: int = LONGEST) -> str:
    """Return text as ``plain`` does, with "(path)" for every word that contains a slash; the
    punctuation after it stays.
    """
    return " ".join(
        f"(path){token[len(token.rstrip(',;:')) :]}" if "/" in token.strip("'\"(),;:") else token
        for token in plain(text, max_length).split()
    )


def _by_entry(table: Any, validate: Callable[[Any], Any]) -> Any:
    """Validate a table, with the first invalid entry as the only fault: each takes a kilobyte."""
    for key in table if isinstance(table, Mapping) else ():
        validate({key: table[key]})
    return validate(table)


def _within(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or not path.parts or ".." in path.parts or "\0" in name:
        raise ValueError("must be the path of a file within the folder")
    return name


NAME = r"[a-z0-9][a-z0-9-]{0,39}"  # of a member, a study, a view
DIGEST = re.compile(r"[0-9a-f]{64}")

Name = Annotated[str, StringConstraints(pattern=f"^{NAME}$")]
NameOrNone = Annotated[str, StringConstraints(pattern=f"^({NAME})?$")]  # "" for none
Sha256 = Annotated[str, StringConstraints(pattern=f"^{DIGEST.pattern}$")]
# a signature; "" for none
Hex = Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{2})*$", max_length=300)]
Within = Annotated[str, AfterValidator(_within)]  # a file's path relative to a folder
Line = Annotated[str, AfterValidator(plain)]  # text for people, one line
LABEL = re.compile(r"[A-Za-z0-9 _.+-]{1,40}")
Label = Annotated[str, StringConstraints(pattern=f"^{LABEL.pattern}$")]  # names in code
Count = Annotated[int, Field(ge=0, lt=2**53)]  # samples, bytes: exact as a float64 too
Number = Annotated[int, Field(ge=0, le=ROUNDS)]  # of a round
ClientId = Annotated[int, Field(ge=0, lt=MAX_CLIENTS)]  # a client's id
Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Measured = Annotated[float, Field(ge=-HUGE, le=HUGE, allow_inf_nan=False)]  # a loss or a metric

Split = Literal["train", "validation", "test"]
SPLITS: tuple[str, ...] = get_args(Split)
Stage = Literal["received", "trained"]  # before or after local training
# each is a task in tasks/
Targets = Literal["classes", "multilabel", "regression", "segmentation", "survival"]
WITH_CLASS_NAMES: frozenset[Targets] = frozenset({"classes", "segmentation"})
"""Types whose outputs are named classes."""

E = TypeVar("E", bound=PomonaError)
K = TypeVar("K")
V = TypeVar("V")

Table = Annotated[dict[K, V], WrapValidator(_by_entry)]  # as FailFast for tuples


def parse(text: str | bytes, fault: Callable[[str], E], max_bytes: int = MOST_BYTES) -> Any:
    """Parse a JSON text from an untrusted source.

    Args:
        text: the text as received.
        fault: creates the error to raise from a phrase that describes the problem.
        max_bytes: maximum length in bytes (or characters).

    Raises:
        E: the text is too long, too deeply nested, not UTF-8, or not JSON; NaN and infinities are
            not accepted.
    """
    if len(text) > max_bytes:
        raise fault(f"it has {len(text)} bytes; the limit is {max_bytes}")
    try:
        value = json.loads(text, parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise fault(f"not JSON: {plain(str(error), 120)}") from None
    if not shallow(value):
        raise fault(f"it is nested more than {DEEPEST} deep")
    return value


def first(fault: ValidationError) -> str:
    """Describe the first validation error of an external record, with its location, as a phrase."""
    error = fault.errors(include_url=False, include_context=False, include_input=False)[0]
    location = plain(".".join(map(str, error["loc"])), 80)
    message = error["msg"].removeprefix("Value error, ")
    return f"{location}: {message[0].lower()}{message[1:]}" if location else message


def _finite(written: str) -> float:
    value = float(written)
    if not isfinite(value):
        raise ValueError(f"{plain(written, 40)} is not a finite number")
    return value


def shallow(value: Any) -> bool:
    """Return whether a value's nesting is within the limit; iterative, so that deep nesting needs
    no stack.
    """
    layer: list[Any] = [[value]]
    for _ in range(DEEPEST + 2):
        layer = [
            inner
            for outer in layer
            for inner in (outer.values() if isinstance(outer, Mapping) else outer)
            if isinstance(inner, NESTED)
        ]
        if not layer:
            return True
    return False
