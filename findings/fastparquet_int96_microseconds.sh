#!/usr/bin/env bash
# One would guess: a pandas column of 2024-01-01 that fastparquet writes as INT96, the form for Spark and Hive, is read as 2024-01-01.
# What happens: pandas 3 keeps times in microseconds, and fastparquet writes their number as nanoseconds: every reader, its own too,
# finds 1970-01-20, without a word. Its default (INT64) keeps the date.
# Versions: fastparquet 2026.9.0, pandas 3.1.1, pyarrow 26.0.1.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m pip install -q --target "$folder" fastparquet==2026.9.0 pandas==3.1.1 pyarrow==26.0.1
cd "$folder" && PYTHONPATH=$folder python3 -W ignore - <<'PY'
import fastparquet, pandas as pd
from pyarrow import parquet
frame = pd.DataFrame({"day": pd.to_datetime(["2024-01-01"])})
read = {}
for form in ("int64", "int96"):
    fastparquet.write("t.parquet", frame, times=form)
    read[form] = parquet.read_table("t.parquet")["day"][0].as_py().date().isoformat()
    print("fastparquet", fastparquet.__version__, form, "read by pyarrow:", read[form])
assert read == {"int64": "2024-01-01", "int96": "1970-01-20"}, read
PY
