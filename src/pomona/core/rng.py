"""Random streams addressed by seed, purpose and indices; all randomness comes from here.

Streams are counter-based (Philox) and keyed by a hash of their address, so a client's draws in a
round depend neither on earlier draws nor on the process it runs in.
"""

import hashlib

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray


class _Key(ISeedSequence):
    """Philox's key as a seed: a key alone would draw from the system's entropy first, which takes
    twice the time of all else.
    """

    def __init__(self, digest: bytes) -> None:
        self._words = np.frombuffer(digest, "<u8").astype(np.uint64)

    def generate_state(self, n_words: int, dtype: object = np.uint64) -> NDArray[np.uint64]:  # noqa: ARG002
        """Return the two words of the key."""
        return self._words


def _digest(seed: int, purpose: str, address: tuple[int, ...]) -> bytes:
    text = "/".join([str(int(seed)), purpose, *(str(int(a)) for a in address)])
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def stream(seed: int, purpose: str, *address: int) -> np.random.Generator:
    """Return the generator at an address, for example ``stream(seed, "batches", round,
    client)``.
    """
    key = _Key(_digest(seed, purpose, address))
    return np.random.Generator(np.random.Philox(key))  # type: ignore[arg-type]  # as documented


def number(seed: int, purpose: str, *address: int) -> int:
    """Return a 63-bit seed at an address, for libraries that need an integer (PyTorch,
    scikit-learn).
    """
    return int.from_bytes(_digest(seed, purpose, address)[:8], "little") >> 1
