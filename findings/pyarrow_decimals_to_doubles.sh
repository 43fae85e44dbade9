#!/usr/bin/env bash
# One would guess: a decimal that is cast to a double becomes the nearest one, as float(Decimal("0.143")) and a CSV reader have it.
# What happens: pyarrow multiplies the digits by a rounded power of ten, so that 0.143 becomes 0.14300000000000002. One in seven of
# the numbers with three decimals differs in its last bit from the same table as CSV, without a word. A cast by way of text is exact.
# Versions: pyarrow 26.0.1.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m pip install -q --target "$folder" pyarrow==26.0.1
cd "$folder" && PYTHONPATH=$folder python3 - <<'PY'
from decimal import Decimal
import pyarrow as pa
cells = [Decimal(k).scaleb(-3) for k in range(1000)]
expected = [float(cell) for cell in cells]
decimals = pa.array(cells, pa.decimal128(10, 3))
read = decimals.cast(pa.float64()).to_pylist()
other = [k for k in range(1000) if read[k] != expected[k]]
print("pyarrow", pa.__version__, "differ:", len(other), "of 1000, as", read[143], "for", cells[143])
print("by way of text:", sum(a != b for a, b in zip(decimals.cast(pa.string()).cast(pa.float64()).to_pylist(), expected)))
assert len(other) == 144 and read[143] == 0.14300000000000002
assert decimals.cast(pa.string()).cast(pa.float64()).to_pylist() == expected
PY
