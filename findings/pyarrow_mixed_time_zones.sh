#!/usr/bin/env bash
# One would guess: times with and without a time zone in one column are refused, as pandas.to_datetime does.
# What happens: pyarrow 26.0.1 takes the zone of the first. If that has none, the others become UTC without a zone: 12:00
# and 12:00+02:00 are read back as 12:00 and 10:00. If it has one, a time without a zone counts as UTC: 12:00 becomes
# 14:00+02:00. So pandas writes object columns of such times to Parquet, in which the mixture cannot be seen.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m pip install -q --target "$folder" pyarrow==26.0.1 pandas==3.1.1 numpy==2.4.6
cd "$folder" && PYTHONPATH=$folder python3 - <<'PY'
from datetime import datetime, timedelta, timezone
import pandas as pd
import pyarrow.parquet as pq
noon = datetime(2024, 7, 1, 12)
there = noon.replace(tzinfo=timezone(timedelta(hours=2)))
for times in ([noon, there], [there, noon]):
    try:
        pd.to_datetime(times)
    except ValueError as fault:
        print("pandas:", fault)
    else:
        raise SystemExit("pandas accepts them")
    pd.DataFrame({"t": pd.Series(times, dtype=object)}).to_parquet("t.parquet")
    column = pq.read_table("t.parquet")["t"]
    print("pyarrow", column.type, [str(time) for time in column.to_pylist()])
    expected = [noon, noon - timedelta(hours=2)] if times[0] is noon else [there, there + timedelta(hours=2)]
    assert column.to_pylist() == expected
PY
