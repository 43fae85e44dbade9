#!/usr/bin/env bash
# One would guess: a clock time with an offset (TIMETZ) leaves DuckDB as the same time by every way.
# What happens: duckdb 2.0.1 gives 10:30+02 to Arrow (and so to polars and pandas) as 10:30, and writes it to Parquet as
# 08:30 in UTC. pyarrow 26.0.1 reads both as times without a zone, so that nothing in the two tables tells them apart.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m pip install -q --target "$folder" duckdb==2.0.1 pyarrow==26.0.1
cd "$folder" && PYTHONPATH=$folder python3 - <<'PY'
from datetime import time
import duckdb, pyarrow as pa
import pyarrow.parquet as pq
query = "select '10:30:00+02'::TIMETZ as t"
direct = pa.table(duckdb.sql(query))["t"]
duckdb.sql(f"copy ({query}) to 't.parquet'")
stored = pq.read_table("t.parquet")["t"]
print("Arrow", direct.type, direct.to_pylist(), "Parquet", stored.type, stored.to_pylist())
assert direct.type == stored.type == pa.time64("us")
assert (direct.to_pylist(), stored.to_pylist()) == ([time(10, 30)], [time(8, 30)])
PY
