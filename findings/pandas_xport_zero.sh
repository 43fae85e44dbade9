#!/usr/bin/env bash
# One would guess: 0 in a SAS transport file (eight zero bytes) is read as 0.
# What happens: pandas 3.1.1 returns 5.397605e-79, so that x == 0 is false in every row; pyreadstat 1.3.7 returns 0.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m pip install -q --target "$folder" pyreadstat==1.3.7 pandas==3.1.1 numpy==2.4.6
cd "$folder" && PYTHONPATH=$folder python3 - <<'PY'
import warnings
import pandas as pd, pyreadstat
warnings.simplefilter("ignore")
pyreadstat.write_xport(pd.DataFrame({"X": [0.0, 1.0]}), "a.xpt", file_format_version=5)
assert bytes.fromhex("00000000000000004110000000000000") in open("a.xpt", "rb").read()
read, other = pd.read_sas("a.xpt").X.tolist(), pyreadstat.read_xport("a.xpt")[0].X.tolist()
print("pandas", pd.__version__, read, "pyreadstat", pyreadstat.__version__, other)
assert read[0] != 0 and 0 < read[0] < 1e-78 and other == [0, 1]
PY
