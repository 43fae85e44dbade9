"""Files of SAS, SPSS and Stata, by pyreadstat.

The library is asked for stored values alone. What they mean is decided here, since it would drop
what is not in its lists: the day of a time, formats of dates, labels of a part of the values.
"""

import re
import warnings
from collections import Counter, defaultdict
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple
from unicodedata import normalize

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pomona.core.errors import DataError, listed
from pomona.core.files import opened
from pomona.data.formats.arrow_arrays import number_array, text_array
from pomona.data.formats.columns import Columns
from pomona.data.formats.program_dates import calendar, dated, is_clock, seconds
from pomona.data.formats.value_labels import labelled
from pomona.data.settings import StatisticsForm

EXACT = 2**53  # doubles hold every whole number below it
MOST_LISTED = 8
_ICONV = {"latin-1": "ISO-8859-1", "mac-roman": "MACINTOSH"}
_MEMBER = re.compile(rb"HEADER RECORD\*{7}MEMB(?:ER|V8)")
CATALOGUE = "formats.sas7bcat"  # as SAS names it
# formats of SAS itself; others name value labels in a catalogue, a file of its own
_SAS_FORMAT = re.compile(
    r"\$?(F|BEST|BESTD|COMMAX?|DOLLARX?|EUROX?|NUMX|PERCENTN?|NEGPAREN|Z|E|D|FRACT|HEX|OCTAL|BINARY"
    r"|ROMAN|SSN|WORD[FS]|[INP]*RB|[INP]*IB|NL\w+|CHAR|QUOTE|UPCASE|VARYING|REVER[JS]|ASCII|EBCDIC"
    r"|MSGCASE|N)?\d*(\.\d*)?"
)


class Program(NamedTuple):
    """How files with one suffix are read: program, function of pyreadstat, and whether it takes an
    encoding and tells values declared as missing.
    """

    name: str
    function: str
    encoding: bool = True
    user_missing: bool = True


PROGRAMS = {
    ".sav": Program("SPSS", "read_sav"),
    ".zsav": Program("SPSS", "read_sav"),
    ".por": Program("SPSS", "read_por", encoding=False, user_missing=False),
    ".dta": Program("Stata", "read_dta"),
    ".sas7bdat": Program("SAS", "read_sas7bdat"),
    ".xpt": Program("SAS", "read_xport", user_missing=False),
}


class Notes:
    """Remarks by kind, each with its columns."""

    def __init__(self) -> None:
        self.columns: defaultdict[str, list[str]] = defaultdict(list)

    def add(self, remark: str, column: str, detail: str = "") -> None:
        """Record a remark about a column."""
        self.columns[remark].append(f"{column} ({detail})" if detail else column)

    def lines(self) -> tuple[str, ...]:
        """Return one line for each remark."""
        return tuple(
            f"{text}: {listed(names, MOST_LISTED)}" for text, names in self.columns.items()
        )


def read(path: Path, settings: object) -> Columns:
    """Read a file of SAS, SPSS or Stata.

    Raises DataError if it is damaged, not of its format, or has more than one table.
    """
    options = settings if isinstance(settings, StatisticsForm) else None
    if path.suffix.lower() not in PROGRAMS:
        raise DataError(f"{path} is compressed; unpack it")
    program = PROGRAMS[path.suffix.lower()]
    _check(path, program)
    values, facts = _stored(path, program, options)
    notes = Notes()
    if path.suffix.lower() == ".sas7bdat":
        _add_catalogue(path, facts, notes)
    by_labels = options is None or options.value_labels == "labels"
    arrays = [_array(program, name, values[name], facts, by_labels, notes) for name in values]
    names = tuple(normalize("NFC", name.strip()) for name in values)
    return Columns(names, tuple(arrays), notes=notes.lines())


def _check(path: Path, program: Program) -> None:
    """Raise DataError for content that the library would read as something else."""
    with opened(path) as file:
        content = file.read() if program.function == "read_xport" else file.read(16)
    if program.function == "read_xport":
        if content.startswith(b"**COMPRESSED**"):
            raise DataError(
                f"{path} was written by PROC CPORT, which only SAS reads; write it by the XPORT "
                "engine or as .sas7bdat"
            )
        names = [
            content[match.start() + 160 :][8:40].split()[0].decode("latin-1")
            for match in _MEMBER.finditer(content)
            if match.start() % 80 == 0
        ]
        if len(names) > 1:
            raise DataError(
                f"{path} holds {len(names)} tables ({listed(names)}); write each to a file of its "
                "own"
            )
    elif program.function == "read_sav" and content[:4] not in {b"$FL2", b"$FL3"}:
        raise DataError(
            f"{path} is not a file of SPSS (IDL has this suffix too); save it by SPSS, or as .csv"
        )


def _stored(path: Path, program: Program, options: StatisticsForm | None) -> tuple[Any, Any]:
    """Return the stored values by column name, and the library's facts about them."""
    library = import_module("pyreadstat")
    arguments: dict[str, Any] = {"user_missing": True} if program.user_missing else {}
    encoding = options.encoding if options else None
    if encoding and (encoding == "utf-16" or not program.encoding):
        raise DataError(f"{path}: {path.suffix} is not read by data.encoding; drop the setting")
    if encoding:
        arguments["encoding"] = _ICONV.get(encoding, encoding.upper())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            values, facts = getattr(library, program.function)(
                str(path), output_format="dict", disable_datetime_conversion=True, **arguments
            )
    except UnicodeError as fault:
        raise DataError(
            f"{path}: texts that are not UTF-8 ({fault}); set data.encoding = 'cp1252' or another"
        ) from fault
    except (library.ReadstatError, library.PyreadstatError, LookupError, ValueError) as fault:
        if "convert string" in str(fault):
            raise DataError(
                f"{path}: texts in another encoding than "
                f"{encoding or 'the file states'}; set data.encoding to that of its texts"
            ) from fault
        raise DataError(
            f"{path}: not a readable file of {program.name} ({fault}); check the file, or save it "
            "again"
        ) from fault
    return values, facts


def _add_catalogue(path: Path, facts: Any, notes: Notes) -> None:
    """Add the value labels of the SAS catalogue next to a file, for the columns whose formats it
    has, to the library's facts.
    """
    catalogue = path.with_name(CATALOGUE)
    if not catalogue.is_file():
        return
    library = import_module("pyreadstat")
    try:
        _, formats = library.read_sas7bcat(str(catalogue), output_format="dict")
    except (library.ReadstatError, library.PyreadstatError, LookupError, ValueError) as fault:
        raise DataError(
            f"{catalogue}: not a readable catalogue of SAS ({fault}); remove it to read codes"
        ) from fault
    labels = {name.upper(): texts for name, texts in formats.value_labels.items()}
    for column, pattern in facts.original_variable_types.items():
        if texts := labels.get(_bare(pattern or "")):
            facts.variable_value_labels[column] = texts
            notes.add(f"value labels are taken from {CATALOGUE}", column)


def _bare(pattern: str) -> str:
    """Return a format of SAS without its width: YESNO for YesNo8.2."""
    return re.sub(r"\d*\.?\d*$", "", pattern.upper())


def _array(
    program: Program, name: str, cells: list[Any], facts: Any, by_labels: bool, notes: Notes
) -> pa.Array:
    """Return the column ``name`` as Arrow: what its format, labels and declared gaps mean."""
    text = facts.readstat_variable_types[name] == "string"
    values, missing = _texts(cells) if text else _numbers(program, name, cells, notes)
    ranges = facts.missing_ranges.get(name, ())
    missing |= _declared(values, missing, ranges, name, notes)
    pattern = facts.original_variable_types[name] or ""
    period = None if text else calendar(program.name, pattern)
    if period:
        return _calendar_column(np.where(missing, np.nan, values), period, name, notes)
    if labels := facts.variable_value_labels.get(name):
        array, remark = labelled(values, missing, labels)
        if array is not None and by_labels:
            notes.add("value labels are read in place of codes", name, remark)
            return array
        if array is not None:
            notes.add("codes are read in place of value labels (data.value_labels)", name)
        elif remark:
            notes.add(
                "only some values have a label, so the column is read as stored (a gap is named by "
                "data.missing_values)",
                name,
                remark,
            )
    elif program.name == "SAS" and not _SAS_FORMAT.fullmatch(pattern.upper()):
        notes.add(
            f"codes are read; their labels lie in a SAS catalogue: put it next to the file as "
            f"{CATALOGUE}",
            name,
            f"format {pattern}",
        )
    if pattern.startswith(("%tb", "%-tb")):
        notes.add("dates of a Stata business calendar are read as numbers", name)
    if text:
        return text_array(np.where(missing, np.array(None), values).tolist())
    return _number_column(values, missing, single=facts.readstat_variable_types[name] == "float")


def _texts(cells: list[Any]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return a column of texts without the blanks that fill their width, and its gaps."""
    values = np.array([(cell or "").rstrip() for cell in cells], object)
    return values, values == ""


def _numbers(
    program: Program, name: str, cells: list[Any], notes: Notes
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return a column of numbers, and its gaps; Stata's .a and SAS's .A come as letters."""
    tags = Counter(cell for cell in cells if isinstance(cell, str))
    if tags:
        counts = ", ".join(f".{tag}: {count}" for tag, count in sorted(tags.items()))
        notes.add(f"missing values of {program.name} are gaps", name, counts)
    values = np.array([None if isinstance(cell, str) else cell for cell in cells], np.float64)
    return values, np.isnan(values)


def _declared(
    values: NDArray[Any], missing: NDArray[np.bool_], ranges: Any, name: str, notes: Notes
) -> NDArray[np.bool_]:
    """Return which values SPSS declares as missing."""
    declared = np.zeros(len(values), bool)
    for bounds in ranges:
        low, high = bounds["lo"], bounds["hi"]
        if isinstance(low, str):
            low, high = low.rstrip(), high.rstrip()
        declared |= (values >= low) & (values <= high)
    declared &= ~missing
    if declared.any():
        counts = sorted(Counter(values[declared].tolist()).items())
        details = [f"{v if isinstance(v, str) else f'{v:g}'}: {count}" for v, count in counts]
        notes.add("values that the file declares as missing are gaps", name, listed(details, 4))
    return declared


def _calendar_column(values: NDArray[Any], period: Any, name: str, notes: Notes) -> pa.Array:
    """Return a column of dates or times."""
    if period.content == "time" and is_clock(values, period):
        notes.add("times and durations are read in seconds", name)
        return _number_column(seconds(values, period), np.isnan(values))
    array, outside = dated(values, period)
    if outside.any():
        notes.add(
            "dates before year 1 or after year 9999 are gaps",
            name,
            f"{outside.sum()}, first in row {int(np.argmax(outside)) + 1}",
        )
    return array


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
