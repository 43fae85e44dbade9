"""Files of another format than their suffix says, recognised by their first bytes."""

import re
from pathlib import Path

from pomona.core.errors import DataError
from pomona.data import formats

SIGNATURE = 64  # bytes that suffice
_STARTS = (
    (rb"PAR1", "a Parquet file", ".parquet"),
    (rb"ARROW1", "an Arrow file", ".arrow"),
    (rb"ORC", "an ORC file", ".orc"),
    (rb"\$FL[23]", "an SPSS file", ".sav"),
    (rb"ASCII SPSS PORT FILE", "an SPSS portable file", ".por"),
    (rb"<stata_dta>|[\x66-\x73][\x01\x02]\x01\x00", "a Stata file", ".dta"),
    (rb"HEADER RECORD", "a SAS transport file", ".xpt"),
    (rb"\x00{12}\xc2\xea\x81\x60", "a SAS file", ".sas7bdat"),
    (rb"PK\x03\x04", "a zip archive, as workbooks are", ".xlsx"),
    (rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "a workbook of Excel 97", ".xls"),
    (rb"RD[AX][23]\n|X\n\x00\x00\x00", "a file of R", ""),
    (rb"\x89HDF\r\n", "an HDF5 file", ""),
    (rb"SQLite format 3", "an SQLite database", ""),
    (rb"\x1f\x8b|BZh|\xfd7zXZ|\x28\xb5\x2f\xfd|7z\xbc\xaf", "compressed", ""),
    (rb"%PDF", "a PDF", ""),
    (rb"(\xef\xbb\xbf)?\s*<(\?xml|!doctype|html|table)", "XML or HTML", ""),
    (rb"\s*[{\[]\s*[{\"]", "JSON", ""),
)


def refuse_foreign(path: Path, start: bytes, title: str) -> None:
    """Raise DataError if a file that is read as ``title`` starts as one of another format does."""
    for pattern, content, suffix in _STARTS:
        if re.match(pattern, start, re.IGNORECASE):
            form = formats.formats().get(suffix)
            extra = f" (with the extra {form.extra})" if form and form.extra else ""
            remedy = f"give it the suffix {suffix}{extra}, or save it" if form else "save it"
            raise DataError(f"{path} is {content}, not {title}; {remedy} as CSV or Parquet")
