#!/usr/bin/env bash
# One would guess: a duration of SPSS (TIME, DTIME: seconds, any number of them) is read as it is, or refused.
# What happens: pyreadstat 1.3.7 returns a time of day, so that 30:00:00 becomes 06:00:00. No warning.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m pip install -q --target "$folder" pyreadstat==1.3.7 pandas==3.1.1 numpy==2.4.6
cd "$folder" && PYTHONPATH=$folder python3 - <<'PY'
from datetime import time
import pandas as pd, pyreadstat
frame = pd.DataFrame({"stay": [30 * 3600.0], "days": [30 * 3600.0]})
pyreadstat.write_sav(frame, "a.sav", variable_format={"stay": "TIME8", "days": "DTIME"})
read = pyreadstat.read_sav("a.sav")[0].iloc[0].to_dict()
print("pyreadstat", pyreadstat.__version__, "30 hours:", read)
assert read == {"stay": time(6), "days": time(6)}
PY
