"""Hash-chained JSON Lines, the format of the audit log and the privacy ledgers.

    {"chain": HEX, "time": "2026-01-05T08:00:00.000+00:00", "event": "started", "round": 0}

``chain`` is the SHA-256 over the previous line's chain, a line feed, and the line's other fields as
JSON. Changing, removing or moving a line therefore breaks the chain from there on. Truncating the
file, or rewriting everything that follows, is not detected: for that, keep a copy of the last chain
value elsewhere.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

START = ""  # chain value before the first line


def chained(chain: str, fields: Mapping[str, Any]) -> tuple[bytes, str]:
    """Return the line (with its line feed) that follows a given chain value, and its own chain
    value.
    """
    content = _text(fields)
    new = hashlib.sha256(f"{chain}\n{content}".encode()).hexdigest()
    return f"{_text({'chain': new, **fields})}\n".encode(), new


def parsed(line: bytes) -> dict[str, Any] | None:
    """Return a line's fields including ``chain``; None if ``chained`` cannot have produced the
    line.
    """
    try:
        fields = json.loads(line)
        # Another spelling of the same values is not accepted.
        valid = (
            isinstance(fields, dict)
            and isinstance(fields.get("chain"), str)
            and _text(fields).encode() == line
        )
    except (ValueError, RecursionError):  # raised for NaN and lone surrogates on writing
        return None
    return fields if valid else None


def _text(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, allow_nan=False, ensure_ascii=False)
