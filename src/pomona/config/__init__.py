"""Every setting of a run, by section, and how layers of settings become one record."""

from pomona.config.config import Config, fitted, keys, resolve
from pomona.config.layers import merge, read_overrides
from pomona.config.machine import TRACKERS
from pomona.config.run import own_method

__all__ = [
    "TRACKERS",
    "Config",
    "fitted",
    "keys",
    "merge",
    "own_method",
    "read_overrides",
    "resolve",
]
