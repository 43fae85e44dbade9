"""Text fragments shared by pages, tables, figures and sentences."""

import re
from collections.abc import Sequence


def listing(items: Sequence[str], limit: int | None = None) -> str:
    """Join words: ``a, b and c``; those beyond ``limit`` are counted: ``a, b and 4 more``."""
    if limit is not None and len(items) > limit:
        items = [*items[:limit], f"{len(items) - limit} more"]
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def capital(text: str) -> str:
    """Capitalise the first letter."""
    return text[:1].upper() + text[1:]


def counted(n: int, noun: str) -> str:
    """Format a count: ``1 client``, ``2 clients``."""
    return f"{n} {noun}{'s' if n != 1 else ''}"


def span(numbers: Sequence[int]) -> str:
    """Format the range of some numbers: ``2 to 30``, or ``30`` if all are equal."""
    return " to ".join(f"{n:,}" for n in sorted({min(numbers), max(numbers)}))


def slug(name: str) -> str:
    """Convert a name for use in a file name, an address or an id."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "unnamed"


def size(n: float) -> str:
    """Format bytes to three digits; 1 kB is 1000 bytes."""
    for unit in ("B", "kB", "MB", "GB"):
        if n < 999.5:
            return f"{n:.3g} {unit}"
        n /= 1000
    return f"{n:.3g} TB" if n < 999.5 else f"{n:,.0f} TB"
