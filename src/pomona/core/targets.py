"""What a data set's targets are: each kind is a task, with a file in ``tasks/``."""

from typing import Literal

Targets = Literal["classes", "multilabel", "regression", "segmentation", "survival"]

NAMED: frozenset[Targets] = frozenset({"classes", "segmentation"})
"""The kinds whose outputs are classes, each with a name."""
