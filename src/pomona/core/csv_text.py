"""CSV files as they leave the package: what a name says is text, and never a formula to who opens it."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

OPENING = ("=", "+", "-", "@", "\t", "\r")  # what spreadsheets take for the beginning of a formula


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """The CSV of equal records, their keys in the first line."""
    return csv_lines(list(rows[0]) if rows else [], [list(row.values()) for row in rows])


def csv_lines(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """The CSV of a header and rows; text that a spreadsheet would compute gets an apostrophe before it."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([[_harmless(cell) for cell in row] for row in (header, *rows)])
    return text.getvalue()


def _harmless(cell: Any) -> Any:
    if not isinstance(cell, str):
        return cell
    text = cell.replace("\r", " ")  # csv writes it without quotes, which its own reader then refuses
    return f"'{text}" if cell.startswith(OPENING) and not _number(cell) else text


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
