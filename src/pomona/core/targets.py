"""Types of targets; each corresponds to a task in ``tasks/``."""

from typing import Literal

Targets = Literal["classes", "multilabel", "regression", "segmentation", "survival"]

NAMED: frozenset[Targets] = frozenset({"classes", "segmentation"})
"""Types whose outputs are named classes."""
