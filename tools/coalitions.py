"""Smallest sums that a server with some of the silos can read in secure aggregation.

python tools/coalitions.py [--most 7] [--without-places]

For each number of silos and of silos with the server, all choices of these silos and of the keys
that they sign are tried: each its own key, or a copy of any other silo's. The masks are those of
``pomona_federation.messages.tensor_bytes``. A sum of honest silos' changes is read if their masked
parts, added or subtracted, and the masks that the server can compute, leave no mask. Parts of
different lists of keys have no mask in common, since masks are bound to the list, and a silo
answers one list a round: so it suffices to look at one list at a time.

``--without-places`` derives masks from the two keys alone, to show that the search finds the attack
on such masks.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import combinations, product
from math import inf

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from numpy.typing import NDArray

from pomona.core.fixed_point import Integers
from pomona_federation.messages.tensor_bytes import masked, public

CONTEXT = "00" * 32
LENGTH = 4  # numbers of a vector: two masks are equal by chance with probability 2^-256
Derivation = Callable[[Integers, str, int, Mapping[int, str], str], Integers]
_public = cache(public)


def smallest_sum(n: int, colluders: tuple[int, ...], derive: Derivation = masked) -> float:
    """Return the smallest number of honest silos whose sum the server can read.

    Args:
        n: number of silos in the sum.
        colluders: places of the silos that are with the server.
        derive: adds a silo's masks, as ``masked`` does.
    """
    secrets = [f"{position + 1:064x}" for position in range(n)]
    honest = [position for position in range(n) if position not in colluders]
    smallest = inf
    for keys in _key_lists(secrets, colluders):
        smallest = min(smallest, _smallest_group(_unknown_masks(secrets, honest, keys, derive)))
        if smallest == 1:
            break
    return smallest


def _key_lists(secrets: list[str], colluders: tuple[int, ...]) -> Iterator[dict[int, str]]:
    """Yield all lists of keys by place that the server can present; first the silos' own."""
    keys = [public(secret) for secret in secrets]
    choices = [[keys[position], *keys[:position], *keys[position + 1 :]] for position in colluders]
    for chosen in product(*choices):
        yield {**dict(enumerate(keys)), **dict(zip(colluders, chosen, strict=True))}


def _unknown_masks(
    secrets: list[str], honest: list[int], keys: Mapping[int, str], derive: Derivation
) -> NDArray[np.uint64]:
    """Return each honest silo's masks (honest, LENGTH) without those that the server can compute:
    it has the private key of each silo with it.
    """
    by_key = {_public(secret): secret for i, secret in enumerate(secrets) if i not in honest}
    rows = np.zeros((len(honest), LENGTH), np.uint64)
    for i, position in enumerate(honest):
        for peer in set(keys) - {position}:
            rows[i] += _pair_mask(derive, secrets[position], position, peer, keys[peer])
            if peer not in honest and (secret := by_key.get(keys[peer])) is not None:
                rows[i] += _pair_mask(derive, secret, peer, position, keys[position])
    return rows


@cache
def _pair_mask(
    derive: Derivation, secret: str, position: int, peer: int, peer_key: str
) -> NDArray[np.uint64]:
    """Return the mask of the silo at ``position`` for one peer; its masks sum over its peers."""
    keys = {position: public(secret), peer: peer_key}
    return derive(np.zeros(LENGTH, np.uint64), secret, position, keys, CONTEXT)


def _smallest_group(masks: NDArray[np.uint64]) -> float:
    """Return the size of the smallest group of rows that, added or subtracted, give zero; infinity
    if no group does, as with keys of which nobody has the private half.
    """
    for size in range(1, len(masks) + 1):
        for rows in combinations(range(len(masks)), size):
            for signs in product((1, -1), repeat=size - 1):
                factors = np.array((1, *signs)).astype(np.uint64)[:, None]
                if not (masks[[*rows]] * factors).sum(axis=0, dtype=np.uint64).any():
                    return size
    return inf


def pairwise_masks(
    values: Integers, secret: str, position: int, keys: Mapping[int, str], context: str
) -> Integers:
    """Add masks that depend on the two keys alone."""
    total = values.copy()
    private = X25519PrivateKey.from_private_bytes(bytes.fromhex(secret))
    for peer in set(keys) - {position}:
        seed = private.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(keys[peer])))
        mask = np.random.default_rng([*seed]).integers(0, 2**64, len(total), np.uint64)
        total = total + mask if position < peer else total - mask
    return total


def main() -> None:
    """Print a line for each number of silos and of silos with the server."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=7, help="largest number of silos")
    parser.add_argument("--without-places", action="store_true")
    options = parser.parse_args()
    derive = pairwise_masks if options.without_places else masked
    print("| silos | with the server | lists of keys | smallest sum that is read |")
    print("| --- | --- | --- | --- |")
    for n in range(3, options.most + 1):
        for count in range(1, n):
            groups = [*combinations(range(n), count)]
            smallest = min(smallest_sum(n, colluders, derive) for colluders in groups)
            lists = len(groups) * n**count
            print(f"| {n} | {count} | {lists:,} | {smallest} of {n - count} |", flush=True)


if __name__ == "__main__":
    main()
