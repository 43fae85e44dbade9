"""Randomness has an address: (seed, purpose, indices) names a stream, and nothing else draws.

Streams are counter-based (Philox) and keyed by a hash of their address, so what a client draws in a
round depends neither on who drew before it nor on the process it runs in.
"""

import hashlib

import numpy as np


def _digest(seed: int, purpose: str, address: tuple[int, ...]) -> bytes:
    text = "/".join([str(int(seed)), purpose, *(str(int(a)) for a in address)])
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def stream(seed: int, purpose: str, *address: int) -> np.random.Generator:
    """The generator at an address, for example ``stream(seed, "batches", round, client)``."""
    key = int.from_bytes(_digest(seed, purpose, address), "little")
    return np.random.Generator(np.random.Philox(key=key))


def number(seed: int, purpose: str, *address: int) -> int:
    """A 63-bit seed at an address, for libraries that want an integer (PyTorch, scikit-learn)."""
    return int.from_bytes(_digest(seed, purpose, address)[:8], "little") >> 1
