#!/usr/bin/env bash
# One would guess: Opacus's two accountants, RDP and PRV, differ by some 10 to 40 %, as at the usual sampling rate of 1 %.
# What happens: its RDP accountant tries orders up to 63, so that no epsilon comes out below about log(1/delta)/62; at a rate of
# 0.1 % it is ten, at 0.01 % twenty times that of PRV, and the noise that a budget asks for is chosen by it.
# Versions: opacus 1.6.0, torch 2.13.0 (TORCH_INDEX=https://download.pytorch.org/whl/cpu: without CUDA's packages).
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m pip install -q --target "$folder" opacus==1.6.0 torch==2.13.0 ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"}
cd "$folder" && PYTHONPATH=$folder python3 -W ignore - <<'PY'
from importlib.metadata import version
from opacus.accountants import PRVAccountant, RDPAccountant
print("opacus", version("opacus"), "largest RDP order", max(RDPAccountant.DEFAULT_ALPHAS))
ratios = []
for rate, steps in ((0.01, 100), (0.001, 100), (0.0001, 1000)):
    epsilons = []
    for accountant in (RDPAccountant(), PRVAccountant()):
        accountant.history = [(1.0, rate, steps)]  # noise multiplier, sampling rate, steps
        epsilons.append(float(accountant.get_epsilon(delta=1e-5)))
    ratios.append(epsilons[0] / epsilons[1])
    print(f"sampling rate {rate}, {steps} steps: RDP {epsilons[0]:.4f}, PRV {epsilons[1]:.4f}, ratio {ratios[-1]:.1f}")
assert 1.5 < ratios[0] < 2 and 9 < ratios[1] < 11 and 20 < ratios[2] < 22
PY
