#!/usr/bin/env bash
# One would guess: Opacus's ModuleValidator.fix, which makes a pretrained network fit for DP-SGD, keeps its scales and shifts
# where it puts GroupNorm in the place of BatchNorm: both have one of each for each channel.
# What happens: the GroupNorm is a new one, scale 1 and shift 0; what was trained is gone, without a word.
# Versions: opacus 1.6.0, torch 2.13.0 (TORCH_INDEX=https://download.pytorch.org/whl/cpu: without CUDA's packages).
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m pip install -q --target "$folder" opacus==1.6.0 torch==2.13.0 ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"}
cd "$folder" && PYTHONPATH=$folder python3 -W always - <<'PY'
import warnings
from importlib.metadata import version
import torch
from opacus.validators import ModuleValidator
network = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3), torch.nn.BatchNorm2d(64))
torch.nn.init.constant_(network[1].weight, 3.0)  # as if trained
torch.nn.init.constant_(network[1].bias, -2.0)
with warnings.catch_warnings(record=True) as heard:
    fixed = ModuleValidator.fix(network)
print("opacus", version("opacus"), fixed[1], "scales", fixed[1].weight.unique().tolist(), "shifts", fixed[1].bias.unique().tolist())
print("kept of the convolution:", torch.equal(fixed[0].weight, network[0].weight), "; warnings:", [str(w.message) for w in heard])
assert fixed[1].weight.unique().tolist() == [1.0] and fixed[1].bias.unique().tolist() == [0.0] and not heard
PY
