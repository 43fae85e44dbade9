#!/usr/bin/env bash
# One would guess: pyarrow.array of a list of texts needs no pandas.
# What happens: pyarrow 26.0.1 imports pandas, where it is installed, on the first call, to look whether the list is a
# pandas object: half a second of processor time, in each process that a program forks for a file.
# Arrays from buffers (pyarrow.Array.from_buffers) do not.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m pip install -q --target "$folder" pyarrow==26.0.1 pandas==3.1.1 numpy==2.4.6
cd "$folder" && PYTHONPATH=$folder python3 - <<'PY'
import sys, time
import pyarrow as pa
pa.Array.from_buffers(pa.int64(), 1, [None, pa.py_buffer(bytes(8))])
assert "pandas" not in sys.modules
start = time.process_time()
pa.array(["a", "b"], pa.string())
print("pyarrow", pa.__version__, "pandas loaded:", "pandas" in sys.modules, f"{time.process_time() - start:.2f} s")
assert "pandas" in sys.modules
PY
