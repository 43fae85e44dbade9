"""Files of SAS, SPSS and Stata, by pyreadstat.

The library is asked for stored values alone. What they mean is decided here, since it would drop
what is not in its lists: the day of a time, formats of dates, labels of a part of the values.
"""

import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pomona.core.errors import DataError, listed
from pomona.core.files import opened
from pomona.core.table import reads_as_number
from pomona.data.cell_values import plain
from pomona.data.formats.columns import Columns, number_array, text_array
from pomona.data.formats.program_dates import Calendar, calendar, clock, dates
from pomona.data.preprocessing import TableColumn
from pomona.data.table_settings import StatisticsForm

EXACT = 2**53  # doubles hold every whole number below it
PROGRAMS = {
    ".sav": ("SPSS", "read_sav"),
    ".zsav": ("SPSS", "read_sav"),
    ".por": ("SPSS", "read_por"),
    ".dta": ("Stata", "read_dta"),
    ".sas7bdat": ("SAS", "read_sas7bdat"),
    ".xpt": ("SAS", "read_xport"),
}
CATALOGUE = "formats.sas7bcat"  # as SAS names it
# formats of SAS itself; others name value labels in a catalogue, a file of its own
_SAS_FORMAT = re.compile(
    r"\$?(F|BEST|BESTD|COMMAX?|DOLLARX?|EUROX?|NUMX|PERCENTN?|NEGPAREN|Z|E|D|FRACT|HEX|OCTAL|BINARY"
    r"|ROMAN|SSN|WORD[FS]|[INP]*RB|[INP]*IB|NL\w+|CHAR|QUOTE|UPCASE|VARYING|REVER[JS]|ASCII|EBCDIC"
    r"|MSGCASE|N)?\d*(\.\d*)?"
)
_MEMBER = re.compile(rb"HEADER RECORD\*{7}MEMB(?:ER|V8)")
Remark = tuple[str, str]  # what happened, and its detail in one column


def read(path: Path, settings: object) -> Columns:
    """Read a file of SAS, SPSS or Stata.

    Raises DataError if it is damaged, not of its format, or has more than one table.
    """
    options = settings if isinstance(settings, StatisticsForm) else StatisticsForm()
    if path.suffix.lower() not in PROGRAMS:
        raise DataError(f"{path} is compressed; unpack it")
    program, function = PROGRAMS[path.suffix.lower()]
    if function == "read_xport":
        _refuse_several_tables(path)
    stored, facts = _parsed(path, function, options.encoding)
    if function == "read_sas7bdat":
        facts.variable_value_labels = _catalogue_labels(path, facts.variable_to_label)
    arrays = []
    notes: defaultdict[str, list[str]] = defaultdict(list)
    for name, cells in stored.items():
        array, remarks = _column(name, cells, facts, program, options)
        arrays.append(array)
        for remark, detail in remarks:
            notes[remark].append(f"{name}{detail and f' ({detail})'}")
    names = tuple(normalize("NFC", name.strip()) for name in stored)
    lines = tuple(f"{note}: {listed(columns, 8)}" for note, columns in notes.items())
    return Columns(names, tuple(arrays), notes=lines)


def _refuse_several_tables(path: Path) -> None:
    """Raise DataError for a transport file of several tables; the library reads
    them as one.
    """
    with opened(path) as file:
        content = file.read()
    names = [
        content[match.start() + 168 :][:32].split()[0].decode("latin-1")
        for match in _MEMBER.finditer(content)
        if match.start() % 80 == 0
    ]
    if len(names) > 1:
        raise DataError(
            f"{path} has {len(names)} tables ({listed(names)}); write each to a file of its own"
        )


def _arguments(path: Path, function: str, encoding: str | None) -> dict[str, Any]:
    """Return the arguments with which a function of the library reads stored values."""
    if encoding and (encoding == "utf-16" or function == "read_por"):
        raise DataError(f"{path}: data.encoding does not apply to {path.suffix}; remove it")
    arguments: dict[str, Any] = {"output_format": "dict"}
    if function != "read_sas7bcat":
        arguments["disable_datetime_conversion"] = True
    if function in {"read_sav", "read_dta", "read_sas7bdat"}:
        arguments["user_missing"] = True
    if encoding:
        iconv = {"latin-1": "ISO-8859-1", "mac-roman": "MACINTOSH"}
        arguments["encoding"] = iconv.get(encoding, encoding.upper())
    return arguments


def _parsed(path: Path, function: str, encoding: str | None = None) -> tuple[Any, Any]:
    """Return the stored values by column name, and the library's facts about them."""
    library = import_module("pyreadstat")
    arguments = _arguments(path, function, encoding)
    try:
        with warnings.catch_warnings(action="ignore"):
            stored, facts = getattr(library, function)(str(path), **arguments)
    except (library.ReadstatError, library.PyreadstatError, LookupError, ValueError) as fault:
        if isinstance(fault, UnicodeError) or "convert string" in str(fault):
            problem = f"texts that are not in {encoding or 'UTF-8 or the encoding that it states'}"
            remedy = "set data.encoding to that of its texts, such as 'cp1252'"
        else:
            problem = f"not a readable file of SAS, SPSS or Stata ({fault})"
            remedy = "save it again, or as CSV"
        raise DataError(f"{path}: {problem}; {remedy}") from fault
    return stored, facts


def _catalogue_labels(path: Path, formats: dict[str, str]) -> dict[str, dict[Any, str]]:
    """Return the value labels that the SAS catalogue next to a file has for its columns, by the
    columns' formats.
    """
    catalogue = path.with_name(CATALOGUE)
    if not catalogue.is_file():
        return {}
    _, facts = _parsed(catalogue, "read_sas7bcat")
    labels = {name.upper(): texts for name, texts in facts.value_labels.items()}
    names = {column: re.sub(r"\d*\.?\d*$", "", name.upper()) for column, name in formats.items()}
    return {column: labels[name] for column, name in names.items() if name in labels}


def _column(
    name: str, cells: list[Any], facts: Any, program: str, options: StatisticsForm
) -> tuple[pa.Array, list[Remark]]:
    """Return a column as Arrow: what its format, labels and declared gaps mean; and remarks."""
    storage = facts.readstat_variable_types[name]
    pattern = facts.original_variable_types[name] or ""
    values, missing, remarks = _values(cells, storage)
    declared, remark = _declared(values, missing, facts.missing_ranges.get(name, ()))
    missing, remarks = missing | declared, remarks + remark
    if storage != "string" and (period := calendar(program, pattern)):
        array, remark = _calendar_column(np.where(missing, np.nan, values), period)
        return array, remarks + remark
    labels = facts.variable_value_labels.get(name, {})
    labels = _labels_in_training(options._trained.get(name), labels, values[~missing])
    texts, remark = _labelled(values, missing, labels, options.value_labels == "labels")
    remarks += remark
    if pattern.startswith(("%tb", "%-tb")):
        remarks.append(("dates of a Stata business calendar are read as numbers", ""))
    if program == "SAS":
        remarks += _catalogue_remark(pattern, labels)
    if texts is not None:
        return texts, remarks
    if storage == "string":
        return text_array(np.where(missing, np.array(None), values)), remarks
    return _number_column(values, missing, single=storage == "float"), remarks


def _catalogue_remark(pattern: str, labels: Mapping[Any, str]) -> list[Remark]:
    """Return whether labels come from a catalogue, or may be in one that is not there."""
    if labels:
        return [(f"value labels are taken from {CATALOGUE}", "")]
    if _SAS_FORMAT.fullmatch(pattern.upper()):
        return []
    advice = f"codes are read: put the SAS catalogue next to the file as {CATALOGUE} for labels"
    return [(advice, f"format {pattern}")]


def _values(cells: list[Any], storage: str) -> tuple[NDArray[Any], NDArray[np.bool_], list[Remark]]:
    """Return the values (n,) of a column, and which of them are gaps.

    Texts lose the blanks that fill their width. Stata's .a and SAS's .A come as letters.
    """
    remarks = []
    if storage == "string":
        values = np.array([(cell or "").rstrip() for cell in cells], object)
        missing = values == ""
    else:
        letters = sorted(Counter(cell for cell in cells if isinstance(cell, str)).items())
        if letters:
            counts = ", ".join(f".{letter}: {count}" for letter, count in letters)
            remarks.append(("missing values with a letter are gaps", counts))
        values = np.array([None if isinstance(cell, str) else cell for cell in cells], np.float64)
        missing = np.isnan(values)
    return values, missing, remarks


def _declared(
    values: NDArray[Any], missing: NDArray[np.bool_], missing_ranges: Sequence[Mapping[str, Any]]
) -> tuple[NDArray[np.bool_], list[Remark]]:
    """Return which values (n,) SPSS declares as missing."""
    declared = np.zeros(len(values), bool)
    for bounds in missing_ranges:
        low, high = (b.rstrip() if isinstance(b, str) else b for b in (bounds["lo"], bounds["hi"]))
        declared |= ~missing & (values >= low) & (values <= high)
    if not declared.any():
        return declared, []
    counts = sorted(Counter(values[declared].tolist()).items())
    detail = listed([f"{_code(value)}: {count}" for value, count in counts], 4)
    return declared, [("values that the file declares as missing are gaps", detail)]


def _calendar_column(
    values: NDArray[np.float64], period: Calendar
) -> tuple[pa.Array, list[Remark]]:
    """Return a column of dates, or of times in seconds; NaN is a gap."""
    seconds = clock(values, period)
    if seconds is not None:
        remark = "times and durations are read in seconds", ""
        return _number_column(seconds, np.isnan(seconds)), [remark]
    array, outside = dates(values, period)
    if not outside.any():
        return array, []
    detail = f"{outside.sum()}, first in row {int(np.argmax(outside)) + 1}"
    return array, [("dates before year 1 or after year 9999 are gaps", detail)]


def _labels_in_training(
    column: TableColumn | None, labels: Mapping[Any, str], codes: NDArray[Any]
) -> Mapping[Any, str]:
    """Return a text for each code, as a model's column was read in training: by label, or as stored
    where it has numbers, or categories that are codes.
    """
    if column is None or not labels:
        return labels
    if column.kind != "category":
        numbers = {_code(k): t.strip() for k, t in labels.items() if reads_as_number(t)}
        return labels if [*numbers] != [*numbers.values()] else {}
    texts = {k: labels.get(k, "").strip() or _code(k) for k in np.unique(codes).tolist()}
    stored = {_code(code): code for code, text in texts.items() if plain(text) not in column.values}
    return texts | {stored[text]: text for text in stored.keys() & column.values}


def _labelled(
    values: NDArray[Any], missing: NDArray[np.bool_], labels: Mapping[Any, str], by_labels: bool
) -> tuple[pa.Array | None, list[Remark]]:
    """Return a column by its value labels; None if it is read as stored.

    Where only some values have a label (98 = refused, in a column of ages), the column is one of
    numbers or texts of its own, and keeps them all.
    """
    codes, index = np.unique(values[~missing], return_inverse=True)
    texts = [(labels.get(code) or "").strip() for code in codes.tolist()]
    labelled = [f"{_code(c)} = {t}" for c, t in zip(codes.tolist(), texts, strict=True) if t]
    if not labelled:
        return None, []
    if len(labelled) < len(texts):
        remark = "columns are read as stored, since only some values have a label; "
        remark += "data.missing_values names gaps"
        return None, [(remark, f"{len(labelled)} of {len(texts)}: {listed(labelled, 3)}")]
    if not by_labels:
        return None, [("codes are read in place of value labels (data.value_labels)", "")]
    cells = np.full(len(values), None, object)
    cells[~missing] = np.array(texts, object)[index]
    shared = [text for text, count in Counter(texts).items() if count > 1]
    detail = f"several codes have the label {listed(shared, 3)}" if shared else ""
    return text_array(cells), [("value labels are read in place of codes", detail)]


def _code(code: Any) -> str:
    """Return a code as text, 1 for 1.0."""
    return f"{code:g}" if isinstance(code, float) else str(code)


def _number_column(
    values: NDArray[Any], missing: NDArray[np.bool_], single: bool = False
) -> pa.Array:
    """Return numbers: whole ones as such, since the programs store all as doubles; an identifier
    is then 100000, not 100000.0.
    """
    filled = np.where(missing, 0, values)
    if np.all((filled == np.floor(filled)) & (np.abs(filled) < EXACT)):
        return number_array(filled.astype(np.int64), missing)
    return number_array(filled.astype(np.float32 if single else np.float64), missing)
