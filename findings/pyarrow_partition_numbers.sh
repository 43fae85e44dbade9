#!/usr/bin/env bash
# One would guess: a column of texts by which a table is partitioned ("01", "1", "02" for hospitals) is read as texts.
# What happens: pyarrow 26.0.1 reads folders site=01 and site=1 as the number 1, so that two hospitals become one; with
# one folder that is not digits all of them are texts. (read_table and dataset alike; a schema for the partitioning helps.)
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m pip install -q --target "$folder" pyarrow==26.0.1 numpy==2.4.6
cd "$folder" && PYTHONPATH=$folder python3 - <<'PY'
import pyarrow as pa
import pyarrow.parquet as pq
for sites in (["01", "1", "02"], ["01", "1", "North"]):
    pq.write_to_dataset(pa.table({"site": sites, "x": [1, 2, 3]}), sites[2], partition_cols=["site"])
    read = pq.read_table(sites[2])["site"].to_pylist()
    print("pyarrow", pa.__version__, "written", sites, "read", sorted(map(str, read)))
    assert len(set(read)) == (2 if sites[2] == "02" else 3)
PY
