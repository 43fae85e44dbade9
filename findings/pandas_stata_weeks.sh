#!/usr/bin/env bash
# One would guess: 31 December 2024, written by pandas as a weekly date of Stata, is in a week of 2024. Stata's years have
# 52 weeks, the last of 8 or 9 days ("help datetime": week 52 ends on 31 December).
# What happens: pandas 3.1.1 writes a week 53, which is the first week of 2025, and reads it back as 2025-01-01.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m pip install -q --target "$folder" pandas==3.1.1 numpy==2.4.6
cd "$folder" && PYTHONPATH=$folder python3 - <<'PY'
import pandas as pd
frame = pd.DataFrame({"week": [pd.Timestamp(2024, 12, 31)]})
frame.to_stata("a.dta", convert_dates={"week": "tw"}, write_index=False)
stored = pd.read_stata("a.dta", convert_dates=False).week[0]
read = pd.read_stata("a.dta").week[0]
print("pandas", pd.__version__, "stored:", stored, "read:", read, "week 52 of 2024:", (2024 - 1960) * 52 + 51)
assert stored == (2025 - 1960) * 52 and read == pd.Timestamp(2025, 1, 1)
PY
