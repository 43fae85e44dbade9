#!/usr/bin/env bash
# One would guess: AUROC depends on the order of the scores alone, so that logits give it as well as probabilities.
# What happens: torchmetrics takes scores outside [0, 1] for logits and applies a sigmoid in their own float32, where all above
# 17 become 1: a network that is sure of itself and ranks every case right has AUROC 0.5, without a word; 1.0 in float64, or with logits below 17.
# Versions: torchmetrics 1.9.0, torch 2.13.0 (TORCH_INDEX=https://download.pytorch.org/whl/cpu: without CUDA's packages).
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m pip install -q --target "$folder" torchmetrics==1.9.0 torch==2.13.0 ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"}
cd "$folder" && PYTHONPATH=$folder python3 -W always - <<'PY'
import warnings
from importlib.metadata import version
import torch
from torchmetrics.classification import BinaryAUROC
targets = torch.tensor([0, 0, 1, 1])
logits = torch.tensor([20.0, 30.0, 40.0, 50.0])
with warnings.catch_warnings(record=True) as heard:
    single, double = (float(BinaryAUROC()(scores, targets)) for scores in (logits, logits.double()))
    scaled = float(BinaryAUROC()(logits / 100, targets))
print("torchmetrics", version("torchmetrics"), "logits in float32:", single, "in float64:", double, "divided by 100:", scaled)
print("warnings:", [str(w.message) for w in heard])
assert (single, double, scaled) == (0.5, 1.0, 1.0) and not heard
PY
