"""Turn memory errors into one-line errors."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from pomona.core.errors import OutOfMemoryError

SMALLER = "take a smaller model, batch_size or workers, less data, or a machine with more memory"
PATTERNS = (  # messages of PyTorch on a CPU, and of NumPy and PyTorch on a GPU; each gives the size requested
    r"can't allocate memory: you tried to allocate (\d+ bytes)",
    r"Unable to allocate ([\d.]+ \w+)",
    r"out of memory.*?Tried to allocate ([\d.]+ \w+)",
)


@contextmanager
def enough(doing: str, remedy: str = SMALLER) -> Iterator[None]:
    """Turn memory errors of Python, NumPy and PyTorch into OutOfMemoryError with the activity and the size."""
    try:
        yield
    except (MemoryError, RuntimeError) as fault:
        found = next((match for p in PATTERNS if (match := re.search(p, str(fault), re.DOTALL))), None)
        if found is None and not isinstance(fault, MemoryError):
            raise
        asked = f" for {_readable(found[1])} more" if found else ""
        raise OutOfMemoryError(f"{doing}: there is no memory{asked}; {remedy}") from fault


def _readable(amount: str) -> str:
    number, unit = amount.split()
    return f"{int(number) / 1e9:.1f} GB" if unit == "bytes" else amount
