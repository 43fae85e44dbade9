#!/usr/bin/env bash
# One would guess: a Stata date is read as a date whatever its display format, as pandas reads it.
# What happens: pyreadstat 1.3.7 knows four spellings of %td. Every other one (%tdDD/NN/CCYY) comes as the number of days
# since 1960, and a date with the format %tcHH:MM loses its day. No warning.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m pip install -q --target "$folder" pyreadstat==1.3.7 pandas==3.1.1 numpy==2.4.6
cd "$folder" && PYTHONPATH=$folder python3 - <<'PY'
from datetime import date, datetime, time, timedelta
import pandas as pd, pyreadstat
origin, moment = datetime(1960, 1, 1), datetime(2024, 3, 1, 10, 30)
frame = pd.DataFrame({"plain": [(moment - origin).days], "custom": [(moment - origin).days],
                      "clock": [(moment - origin) / timedelta(milliseconds=1)]})
pyreadstat.write_dta(frame, "a.dta", variable_format={"plain": "%td", "custom": "%tdDD/NN/CCYY", "clock": "%tcHH:MM"})
read = pyreadstat.read_dta("a.dta")[0].iloc[0].to_dict()
other = pd.read_stata("a.dta").iloc[0].to_dict()
print("pyreadstat", pyreadstat.__version__, read)
print("pandas", pd.__version__, other)
assert read == {"plain": date(2024, 3, 1), "custom": 23436, "clock": time(10, 30)}
assert other["custom"] == pd.Timestamp(2024, 3, 1) and other["clock"] == pd.Timestamp(moment)
PY
