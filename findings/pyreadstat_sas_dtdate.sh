#!/usr/bin/env bash
# One would guess: a column of SAS with the format DTDATE9. holds a datetime, seconds since 1960, of
# which SAS shows the date (as with DATETIME20., the same numbers), and pyreadstat, which lists
# DTDATE among its formats, reads it so.
# What happens: pyreadstat counts the seconds as days. 3 January 1960 comes as 9 February 2433, and a
# moment of 2024 ends the reading of the file with an OverflowError.
# Versions: pyreadstat 1.3.7, pandas 2.3.3 (writes the file), Python 3.11.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m pip install --quiet --target "$folder/packages" pyreadstat==1.3.7 pandas==2.3.3 numpy==2.3.5
cd "$folder"
PYTHONPATH="$folder/packages" python3 - <<'PYTHON'
from datetime import date, datetime

import pandas as pd
import pyreadstat

print("pyreadstat", pyreadstat.__version__)
formats = {"SHOWN": "DTDATE9", "WHOLE": "DATETIME20"}


def read(moment):
    seconds = (moment - datetime(1960, 1, 1)).total_seconds()
    frame = pd.DataFrame({name: [seconds] for name in formats})
    pyreadstat.write_xport(frame, "a.xpt", variable_format=formats)
    columns, _ = pyreadstat.read_xport("a.xpt", output_format="dict")
    return columns["SHOWN"][0], columns["WHOLE"][0]


shown, whole = read(datetime(1960, 1, 3))
print("3 January 1960, as DTDATE9:", shown, "as DATETIME20:", whole)
assert whole == datetime(1960, 1, 3)
assert shown == date(2433, 2, 9)
try:
    read(datetime(2024, 3, 1))
except OverflowError as fault:
    print("1 March 2024:", fault)
else:
    raise SystemExit("1 March 2024 was read")
PYTHON
