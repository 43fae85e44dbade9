#!/usr/bin/env bash
# One would guess: PEFT's add_weighted_adapter(..., combination_type="linear") gives the weighted mean of two LoRA changes, as
# the server of a federation would want it.
# What happens: it averages A and B apart, each by the root of the weight, so that each adapter's B meets the other's A: the
# change is about as far from the mean as that is from zero. "svd" comes near it; "cat" is exact, at twice the rank.
# Versions: peft 0.21.2, transformers 5.24.0, torch 2.13.0 (TORCH_INDEX=https://download.pytorch.org/whl/cpu: without CUDA's).
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m pip install -q --target "$folder" peft==0.21.2 transformers==5.24.0 torch==2.13.0 ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"}
cd "$folder" && PYTHONPATH=$folder python3 -W ignore - <<'PY'
from importlib.metadata import version
import torch
from peft import LoraConfig, get_peft_model
torch.manual_seed(0)
layer = torch.nn.Sequential(torch.nn.Linear(4, 3, bias=False))
inputs = torch.eye(4)
before = layer(inputs).detach()
config = LoraConfig(r=2, lora_alpha=2, target_modules=["0"], init_lora_weights=False)
model = get_peft_model(layer, config, adapter_name="one")
model.add_adapter("two", config)
def change(name):
    model.set_adapter(name)
    return model(inputs).detach() - before
mean = (change("one") + change("two")) / 2
distances = {}
for kind in ("linear", "svd", "cat"):
    model.add_weighted_adapter(["one", "two"], [0.5, 0.5], kind, combination_type=kind)
    distances[kind] = float((change(kind) - mean).norm() / mean.norm())
    print("peft", version("peft"), kind, f"relative distance from the mean of the changes {distances[kind]:.1e}")
assert distances["linear"] > 0.5 and distances["svd"] < 0.1 and distances["cat"] < 1e-6
PY
