"""Samples for a model, read from files as its training read them."""

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from pomona.data.text import encode
from pomona.errors import DataError
from pomona.personal.about import About

MEMORY_SHARE = 0.25  # of the machine's, above which arrays are kept on disk; the default of data.memory_share


def encoded(texts: Sequence[str], about: About) -> NDArray[Any]:
    """Token numbers (n, T) int32 of texts, by the training's vocabulary. Raises DataError if the model has none."""
    if not about.words:
        raise DataError("this model was not trained on words; give it arrays of what it was trained on")
    index = {word: number for number, word in enumerate(about.words, start=2)}
    return encode(texts, index, about.input_shape[0], MEMORY_SHARE)
