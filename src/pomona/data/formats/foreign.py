"""Files of another format than their suffix says, recognised by their first bytes."""

import re
from pathlib import Path

from pomona.core.errors import DataError
from pomona.data import formats

SIGNATURE = 64  # bytes that suffice
TABLES = {
    rb"PAR1": ".parquet",
    rb"ARROW1": ".arrow",
    rb"ORC": ".orc",
    rb"\$FL[23]": ".sav",
    rb"ASCII SPSS PORT FILE": ".por",
    rb"<stata_dta>|[\x66-\x73][\x01\x02]\x01\x00": ".dta",
    rb"HEADER RECORD": ".xpt",
    rb"\x00{12}\xc2\xea\x81\x60": ".sas7bdat",
    rb"PK\x03\x04": ".xlsx",
    rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": ".xls",
}
# gzip, bzip2, xz, zstd, 7z; R, HDF5, SQLite, PDF; MATLAB, Avro; markup; JSON
UNREAD = re.compile(
    rb"\x1f\x8b|BZh|\xfd7zXZ|\x28\xb5\x2f\xfd|7z\xbc\xaf|RD[AX][23]\n|X\n\0|\x89HDF|SQLite format"
    rb"|%PDF|MATLAB [57]\.|Obj\x01|(\xef\xbb\xbf)?\s*<(\?xml|!doctype|html|table)|\s*[{\[]\s*[{\"]",
    re.IGNORECASE,
)


def refuse_foreign(path: Path, start: bytes, title: str) -> None:
    """Raise DataError if a file that is read as ``title`` starts as one of another format does."""
    for pattern, suffix in TABLES.items():
        if re.match(pattern, start):
            table = formats.formats()[suffix]
            extra = f" (with the extra {table.extra})" if table.extra else ""
            raise DataError(
                f"{path} is a {table.title} file, not {title}; give it the suffix {suffix}{extra}, "
                "or save it as CSV or Parquet"
            )
    if UNREAD.match(start):
        raise DataError(
            f"{path} is compressed, HTML, JSON, or from another program, not {title}; save it as "
            "CSV or Parquet (R: write.csv(x, FILE, row.names = FALSE))"
        )
