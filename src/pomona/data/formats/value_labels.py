"""Value labels of SPSS, Stata and SAS: the texts that a file gives to codes such as 1 and 2."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pomona.core.errors import listed
from pomona.data.formats.arrow_arrays import text_array

MOST_LISTED = 3


class Labelled(NamedTuple):
    """A column by its labels.

    Attributes:
        array: the labels (n,); None if the column keeps its codes.
        note: what the reader should know of it; empty if nothing.
    """

    array: pa.Array | None
    note: str = ""


def labelled(
    values: NDArray[Any], missing: NDArray[np.bool_], labels: Mapping[Any, str]
) -> Labelled:
    """Replace the codes of a column by their labels, if every value has one.

    Where only some values have one (98 = refused, in a column of ages), the column is one of
    numbers or texts of its own, and keeps them all.

    Args:
        values: (n,) numbers or texts as stored.
        missing: (n,) which cells are gaps.
        labels: by code; without a text where the code has none.
    """
    labels = {code: label.strip() for code, label in labels.items() if label and label.strip()}
    codes, index = np.unique(values[~missing], return_inverse=True)
    texts = [labels.get(code) for code in codes.tolist()]
    present = [f"{_code(c)} = {t}" for c, t in zip(codes.tolist(), texts, strict=True) if t]
    if not present:
        return Labelled(None)
    if len(present) < len(texts):
        return Labelled(
            None,
            f"{len(present)} of {len(texts)} values have a label ({listed(present, MOST_LISTED)})",
        )
    cells = np.full(len(values), None, object)
    cells[~missing] = np.array(texts, object)[index]
    shared = sorted({text for text in texts if texts.count(text) > 1 and text})
    note = f"several codes have the label {listed(shared, MOST_LISTED)}" if shared else ""
    return Labelled(text_array(cells.tolist()), note)


def _code(code: Any) -> str:
    """Return a code as text, 1 for 1.0."""
    return f"{code:g}" if isinstance(code, float) else str(code)
