#!/usr/bin/env bash
# One would guess: a datetime.time with an offset is refused by pyarrow, whose times have no zone, or turned to UTC, as
# a datetime with an offset is.
# What happens: pyarrow 26.0.1 drops the offset: 10:30+02:00 and 10:30-05:00 are both 10:30. So pandas 3.1.1 writes
# such times to Parquet as equal ones.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m pip install -q --target "$folder" pyarrow==26.0.1 pandas==3.1.1 numpy==2.4.6
cd "$folder" && PYTHONPATH=$folder python3 - <<'PY'
from datetime import datetime, time, timedelta, timezone
import pandas as pd, pyarrow as pa
import pyarrow.parquet as pq
zones = [timezone(timedelta(hours=hours)) for hours in (2, -5)]
pd.DataFrame({"t": [time(10, 30, tzinfo=zone) for zone in zones]}).to_parquet("t.parquet")
column = pq.read_table("t.parquet")["t"]
moments = pa.array([datetime(2024, 7, 1, 10, 30, tzinfo=zone) for zone in zones], pa.timestamp("s", "UTC"))
print(column.type, column.to_pylist(), "moments", [str(moment) for moment in moments.to_pylist()])
assert column.to_pylist() == [time(10, 30)] * 2
assert [moment.hour for moment in moments.to_pylist()] == [8, 15]
PY
