#!/usr/bin/env bash
# One would guess: a frame of polars that pyarrow.table() takes (by __arrow_c_stream__) can be used as any Arrow table.
# What happens: polars 2.1.0 gives its texts as string_view, for which pyarrow 26.0.1 has no kernel to filter, to search
# or to count; numbers are fine. Casting such columns to large_string first helps; files of polars come as large_string.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m pip install -q --target "$folder" pyarrow==26.0.1 polars==2.1.0 numpy==2.4.6
cd "$folder" && PYTHONPATH=$folder python3 - <<'PY'
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
table = pa.table(pl.DataFrame({"site": ["a", "b"], "x": [1, 2]}))
print("pyarrow", pa.__version__, "polars", pl.__version__, table.schema.field("site").type)
assert table["x"].filter(pa.array([True, False])).to_pylist() == [1]
for use in (lambda c: c.filter(pa.array([True, False])), lambda c: pc.match_substring(c, "a"), pc.count_distinct):
    try:
        use(table["site"])
    except pa.ArrowNotImplementedError as fault:
        print("not implemented:", str(fault)[:90])
    else:
        raise SystemExit("implemented by now")
assert table["site"].cast(pa.large_string()).filter(pa.array([True, False])).to_pylist() == ["a"]
PY
