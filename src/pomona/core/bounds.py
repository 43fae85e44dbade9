"""The door: types with bounds for every value that a file, a person or another organisation supplies.

A record that is read from outside is made of these; behind them nothing is checked again. A value that does not fit is
refused by pydantic when the record is made, so that neither disk, memory nor terminal ever meets it.
"""

import json
import re
import unicodedata
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, Field, StringConstraints, ValidationError

from pomona.core.errors import PomonaError

MOST_BYTES = 64 * 2**20  # of one JSON text, unless its reader knows better
DEEPEST = 64  # nested lists and objects
NESTED = (Mapping, list, tuple)
LONGEST = 500  # characters of a line that another party wrote
ROUNDS = 10**6  # the highest number of a round
PLACES = 10**4  # most places of a federation
HUGE = 1e100  # sums of squares over samples and silos stay finite


def plain(text: str, most: int = LONGEST) -> str:
    """Text of another party as one harmless line: no control, format or line-breaking characters, at most so long.

    What cannot be shown becomes a blank: a terminal obeys no escape sequence, and nobody writes a line of their own.
    """
    kept = "".join(" " if unicodedata.category(c)[0] == "C" or c in "\u2028\u2029" else c for c in text[: 4 * most])
    line = " ".join(kept.split())
    return line if len(line) <= most else line[: most - 3] + "..."


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
Hex = Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{2})*$", max_length=300)]  # a signature; "" for none
Within = Annotated[str, AfterValidator(_within)]  # the path of a file in a folder, as seen from there
Line = Annotated[str, AfterValidator(plain)]  # text for people, one line
Label = Annotated[str, StringConstraints(min_length=1, max_length=40, pattern=r"^[A-Za-z0-9 _.+-]+$")]  # names in code
Count = Annotated[int, Field(ge=0, lt=2**53)]  # samples, bytes: exact as a float64 too
Number = Annotated[int, Field(ge=0, le=ROUNDS)]  # of a round
Place = Annotated[int, Field(ge=0, lt=PLACES)]  # a client's id
Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Measured = Annotated[float, Field(ge=-HUGE, le=HUGE, allow_inf_nan=False)]  # a loss or a metric

E = TypeVar("E", bound=PomonaError)


def parse(text: str | bytes, fault: Callable[[str], E], most: int = MOST_BYTES) -> Any:
    """The value of a JSON text from outside.

    Args:
        text: as it came.
        fault: makes the error to raise from half a sentence that says what is wrong.
        most: bytes (or characters) that it may have.

    Raises:
        E: too long, too deep, not UTF-8, or no JSON; NaN and the infinities are no JSON.
    """
    if len(text) > most:
        raise fault(f"it has {len(text)} bytes, at most {most} are read")
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as wrong:
        raise fault(f"no JSON: {plain(str(wrong), 120)}") from None
    if not shallow(value):
        raise fault(f"it is nested more than {DEEPEST} deep")
    return value


def first(fault: ValidationError) -> str:
    """First fault of a record from outside and its place in it, as half a line of text."""
    error = fault.errors(include_url=False, include_context=False, include_input=False)[0]
    place = plain(".".join(map(str, error["loc"])), 80)
    what = error["msg"].removeprefix("Value error, ")
    return f"{place}: {what[0].lower()}{what[1:]}" if place else what


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no number")


def shallow(value: Any) -> bool:
    """Whether a value is nested no deeper than allowed; layer by layer, so that depth costs no recursion."""
    layer = [value]
    for _ in range(DEEPEST + 1):
        layer = [
            inner
            for outer in layer
            if isinstance(outer, NESTED)
            for inner in (outer.values() if isinstance(outer, Mapping) else outer)
            if isinstance(inner, NESTED)
        ]
        if not layer:
            return True
    return False
