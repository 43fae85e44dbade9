"""Hash-chained JSON Lines: the shared format of the audit log and the privacy ledgers.

    {"chain": HEX, "time": "2026-01-05T08:00:00.000+00:00", "event": "started", "round": 0}

``chain`` is the SHA-256 over the chain of the line before, a line feed, and the line's other fields as JSON. A line
that is changed, dropped or moved therefore breaks the chain from there on. Cutting lines off the end, or writing the
whole rest anew, does not: a copy of the last chain has to be kept elsewhere for that.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

START = ""  # the chain before the first line


def chained(chain: str, fields: Mapping[str, Any]) -> tuple[bytes, str]:
    """Return the line (with its end) that follows a line of the given chain, and its own chain."""
    content = _text(fields)
    new = hashlib.sha256(f"{chain}\n{content}".encode()).hexdigest()
    return f"{_text({'chain': new, **fields})}\n".encode(), new


def parsed(line: bytes) -> dict[str, Any] | None:
    """Return the fields of a line without its end, ``chain`` included; None if ``chained`` cannot have written it."""
    try:
        fields = json.loads(line)
        # Another spelling of the same values is not what was written.
        whole = isinstance(fields, dict) and isinstance(fields.get("chain"), str) and _text(fields).encode() == line
    except (ValueError, RecursionError):  # raised for NaN and for half a character when they are written
        return None
    return fields if whole else None


def _text(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, allow_nan=False, ensure_ascii=False)
