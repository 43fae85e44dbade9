"""Data, partition and network of a run, complete before any training."""

from pomona.scenario.scenario import Scenario

__all__ = ["Scenario"]
