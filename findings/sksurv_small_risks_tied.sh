#!/usr/bin/env bash
# One would guess: a concordance index depends on the order of the risks alone; it is the same for risks times 1e-9.
# What happens: scikit-survival takes risks that differ by at most 1e-8 (tied_tol, an absolute number) for ties: a perfect order
# of small risks has 0.5. lifelines compares exactly.
# Versions: scikit-survival 0.28.0, lifelines 0.30.3.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m pip install -q --target "$folder" scikit-survival==0.28.0 lifelines==0.30.3
cd "$folder" && PYTHONPATH=$folder python3 -W ignore - <<'PY'
from importlib.metadata import version
import numpy as np
from lifelines.utils import concordance_index
from sksurv.metrics import concordance_index_censored, concordance_index_ipcw
from sksurv.util import Surv
times, events = np.arange(1.0, 6.0), np.ones(5, bool)
risks = 6 - times  # who dies first has the highest
outcomes = Surv.from_arrays(events, times)
seen = {}
for factor in (1.0, 1e-8, 1e-9):
    seen[factor] = (
        float(concordance_index_censored(events, times, risks * factor)[0]),
        float(concordance_index_ipcw(outcomes, outcomes, risks * factor)[0]),
        float(concordance_index(times, -risks * factor, events)),
    )
    print("risks times", factor, "scikit-survival", seen[factor][:2], "lifelines", seen[factor][2])
print("scikit-survival", version("scikit-survival"), "lifelines", version("lifelines"))
assert seen[1.0] == (1.0, 1.0, 1.0) and seen[1e-8][0] == 0.85 and seen[1e-9] == (0.5, 0.5, 1.0)
PY
