"""Random streams addressed by seed, purpose and indices; all randomness comes from here.

Streams are counter-based (Philox) and keyed by a hash of their address, so a client's draws in a
round depend neither on earlier draws nor on the process it runs in.
"""

import hashlib

import numpy as np


def _digest(seed: int, purpose: str, address: tuple[int, ...]) -> bytes:
    text = "/".join([str(int(seed)), purpose, *(str(int(a)) for a in address)])
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def stream(seed: int, purpose: str, *address: int) -> np.random.Generator:
    """Return the generator at an address, for example ``stream(seed, "batches", round,
    client)``.
    """
    key = int.from_bytes(_digest(seed, purpose, address), "little")
    return np.random.Generator(np.random.Philox(key=key))


def number(seed: int, purpose: str, *address: int) -> int:
    """Return a 63-bit seed at an address, for libraries that need an integer (PyTorch,
    scikit-learn).
    """
    return int.from_bytes(_digest(seed, purpose, address)[:8], "little") >> 1
