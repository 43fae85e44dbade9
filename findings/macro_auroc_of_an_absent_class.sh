#!/usr/bin/env bash
# One would guess: where a hospital has no case of a class, libraries leave it out of the macro AUROC, or have no number.
# What happens: torchmetrics counts it as 0 in AUROC (so 2/3 where both other classes are ranked perfectly), next to average
# precision, where it leaves it out (1.0); MONAI gives NaN. A mean over hospitals differs by the library.
# Versions: torchmetrics 1.9.0, monai 1.6.1, torch 2.13.0 (TORCH_INDEX=https://download.pytorch.org/whl/cpu: without CUDA's).
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m pip install -q --target "$folder" torchmetrics==1.9.0 monai==1.6.1 torch==2.13.0 ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"}
cd "$folder" && PYTHONPATH=$folder python3 -W ignore - <<'PY'
from importlib.metadata import version
from math import isnan
import torch
from monai.metrics import ROCAUCMetric
from torchmetrics.classification import MulticlassAUROC, MulticlassAveragePrecision
scores = torch.tensor([[0.7, 0.2, 0.1], [0.2, 0.7, 0.1], [0.1, 0.8, 0.1], [0.6, 0.3, 0.1]])
targets = torch.tensor([0, 1, 1, 0])  # the third class is absent
auroc = float(MulticlassAUROC(3, average="macro")(scores, targets))
precision = float(MulticlassAveragePrecision(3, average="macro")(scores, targets))
metric = ROCAUCMetric(average="macro")
metric(scores, torch.nn.functional.one_hot(targets, 3))
by_monai = float(metric.aggregate())
print("torchmetrics", version("torchmetrics"), f"AUROC {auroc:.4f}, average precision {precision:.4f}; monai", version("monai"), by_monai)
assert abs(auroc - 2 / 3) < 1e-6 and precision == 1.0 and isnan(by_monai)
PY
