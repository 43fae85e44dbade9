"""Small pieces of text that pages, tables, figures and sentences share."""

import re
from collections.abc import Sequence


def listing(words: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def capital(text: str) -> str:
    """As at the beginning of a sentence."""
    return text[:1].upper() + text[1:]


def counted(n: int, thing: str) -> str:
    """``1 client``, ``2 clients``."""
    return f"{n} {thing}{'s' if n != 1 else ''}"


def slug(name: str) -> str:
    """A name as it may stand in a file name, an address or an id."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "unnamed"


def megabytes(n: float) -> str:
    """Bytes as a number of 10^6, one decimal, or as kB below a tenth of one."""
    return f"{n / 1e6:,.1f}" if n >= 1e5 or not n else f"{n / 1e3:,.1f} kB"


def size(n: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000 or unit == "GB":
            return f"{n:.3g} {unit}"
        n /= 1000
    raise AssertionError
