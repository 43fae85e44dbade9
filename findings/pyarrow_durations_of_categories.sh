#!/usr/bin/env bash
# One would guess: durations that are categories come back from Parquet as durations, as clock times, dates and
# durations that are no categories do.
# What happens: pyarrow 26.0.1 reads whole numbers of their unit, without a word: one hour is 3600 where it was stored
# in seconds. The file has the type. So a categorical column of timedeltas of pandas 3.1.1 comes back as numbers.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m pip install -q --target "$folder" pyarrow==26.0.1 pandas==3.1.1 numpy==2.4.6
cd "$folder" && PYTHONPATH=$folder python3 - <<'PY'
from datetime import time, timedelta
import pandas as pd, pyarrow as pa
import pyarrow.parquet as pq
durations = pa.array([timedelta(hours=1), timedelta(hours=2)], pa.duration("s"))
clocks = pa.array([time(1), time(2)])
table = pa.table({"plain": durations, "coded": durations.dictionary_encode(), "clock": clocks.dictionary_encode()})
pq.write_table(table, "t.parquet")
back = pq.read_table("t.parquet")
print(back.schema.types, back["coded"].to_pylist())
assert back["plain"].to_pylist() == durations.to_pylist() and back["clock"].to_pylist() == clocks.to_pylist()
assert back["coded"].to_pylist() == [3600, 7200]
frame = pd.DataFrame({"wait": pd.Categorical([timedelta(hours=1), timedelta(hours=2)])})
frame.to_parquet("t.parquet")
assert pd.read_parquet("t.parquet")["wait"].tolist() == [3_600_000_000, 7_200_000_000]
PY
