"""Names of the splits of a client's rows, and of the types of targets, each of which is a task in
``tasks/``.
"""

from typing import Literal, get_args

Split = Literal["train", "validation", "test"]
SPLITS: tuple[str, ...] = get_args(Split)

Targets = Literal["classes", "multilabel", "regression", "segmentation", "survival"]

NAMED: frozenset[Targets] = frozenset({"classes", "segmentation"})
"""Types whose outputs are named classes."""
