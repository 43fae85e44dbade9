"""torchvision with a CPU build of PyTorch: frameworks import it, but none of its operators is used.

PyPI's torchvision is built for CUDA. With a CPU build of PyTorch its compiled operators do not
load, and its import fails at the two that it registers shapes for. These are then declared here.
Import this module before such a framework.
"""

import sys

import torch

try:
    import torchvision
except RuntimeError:
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision

__all__ = ["torchvision"]
