#!/usr/bin/env bash
# One would guess that DATE 'infinity', which DuckDB (as PostgreSQL) has for "until further notice", is written to
# Parquet as a gap, or that Arrow refuses it or calls it out of range. It is written as the largest number of days,
# and Arrow's year and strftime compute an ordinary date of the year 20599 from it, without a word; its cast to text
# does not fail either, but makes a text of the words "<value out of range: ...>". For TIMESTAMP 'infinity' the year is
# 32103, and pandas shows 294247. Only Python objects fail. (Polars ends with a panic when it prints such a column.)
# Remedy: turn infinity into NULL in the query, or compare with the largest number before anything else.
# Versions: duckdb 2.0.1, pyarrow 26.0.1.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m pip install --quiet --disable-pip-version-check --target "$folder/lib" duckdb==2.0.1 pyarrow==26.0.1
cd "$folder"
PYTHONPATH="$folder/lib" python3 - <<'PY'
import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

duckdb.sql("""
    copy (select * from (values (date '2024-03-01', timestamp '2024-03-01'),
                                (date 'infinity', timestamp 'infinity')) stays (discharged, seen))
    to 'stays.parquet' (format parquet)
""")
table = parquet.read_table("stays.parquet")
discharged, seen = table["discharged"], table["seen"]
years = pc.year(discharged).to_pylist(), pc.year(seen).to_pylist()
texts = discharged.cast(pa.string()).to_pylist()
shown = pc.strftime(discharged, format="%Y-%m-%d").to_pylist()
print("duckdb", duckdb.__version__, "pyarrow", pa.__version__, table.schema.types)
print("gaps:", discharged.null_count + seen.null_count, "years:", years, "strftime:", shown, "text:", texts)
assert discharged.null_count + seen.null_count == 0
assert years == ([2024, 20599], [2024, 32103])
assert shown == ["2024-03-01", "20599-06-22"]
assert texts == ["2024-03-01", "<value out of range: 2147483647>"]
try:
    discharged.to_pylist()
except OverflowError as fault:
    print("objects:", fault)
else:
    raise SystemExit("objects of Python no longer fail")
PY
