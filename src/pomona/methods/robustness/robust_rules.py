"""Rules of robust aggregation, as pure functions; equations and sources are in ``robust``.

A rule sees models W (n, k), the model w (k,) that was sent and weights p (n,), and works on the
changes D_i = w_i - w. All but the median and the trimmed mean follow from the Gram matrix <D_i,
D_j> (n, n), whatever k is. Medians of distances are the lower ones: with at most half of the
clients lying, they are no larger than an honest one's.
"""

from collections.abc import Callable

from pomona.core.lazy_torch import Tensor, torch
from pomona.methods.row_algebra import floored
from pomona.storage.mapped_tensor import chunked

SMALLEST = 1e-12
"""Share of the median change below which two points are taken for one (nu); what sums may differ by
from 1."""
NEAREST = 1e-150
"""Its inverse is finite."""
START_RADIUS = 100.0
"""Median changes beyond which a change is shortened where Weiszfeld's steps begin: from a mean with
one of any size they would not arrive."""


def gram(W: Tensor, w: Tensor) -> Tensor:
    """Return <D_i, D_j> (n, n) float64 on the CPU."""
    return (chunked(W) - w).apply(torch.Tensor.double).gram().cpu()


def distances(G: Tensor, a: Tensor) -> Tensor:
    """Return the distances (n,) of all D_i from sum_j a_j D_j, by their Gram matrix."""
    square = G.diagonal() - 2 * (G @ a) + a @ G @ a
    return square.clamp_min(0).sqrt()


def shortening(r: Tensor, t: float | Tensor) -> Tensor:
    """Return min(1, t / r) (n,); 1 for a distance of 0."""
    return torch.where(r > t, t / r.clamp_min(torch.finfo(r.dtype).tiny), 1.0)


def clipping(G: Tensor, c: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return each change's factor (n,) and length (n,), and the radius t, c times their median."""
    r = G.diagonal().sqrt()
    t = c * r.median()
    return shortening(r, t), r, t


def clipped(W: Tensor, w: Tensor, c: float) -> Tensor:
    """Return the models (n, k) with changes of at most c times their median length."""
    factor, _, _ = clipping(gram(W, w), c)
    if bool((factor == 1).all()):
        return W
    f = factor.to(W).unsqueeze(1)
    return (
        chunked(W)
        .apply(lambda rows, center: torch.where(f < 1, center + f * (rows - center), rows), w)
        .compute()
    )


def centred(G: Tensor, p: Tensor, steps: int, radius: Callable[[Tensor], Tensor]) -> Tensor:
    """Return coefficients (n,) of centred clipping: the result is w + sum_i a_i D_i.

    Args:
        G: Gram matrix of the changes.
        p: weights (n,).
        steps: L.
        radius: t as a function of the distances (n,) from the last point.
    """
    a = torch.zeros_like(p)
    for _ in range(steps):
        r = distances(G, a)
        factor = p * shortening(r, radius(r))
        a = p if torch.equal(factor, p) else a * (1 - factor.sum()) + factor
    return a


def geometric(G: Tensor, p: Tensor, steps: int, nu: float | None = None) -> Tensor:
    """Return coefficients (n,) of the geometric median after Weiszfeld's steps from the mean, in
    which changes are at most ``FAR`` median ones.

    ``nu``: the smallest distance; a share of the median change if not given.
    """
    if not bool(G.any()):  # nobody has moved
        return p
    r = G.diagonal().sqrt()
    typical = float(weighted_median(r, p))
    a = p * shortening(r, START_RADIUS * typical)
    min_distance = max(NEAREST, SMALLEST * typical if nu is None else nu)
    for _ in range(steps):
        r = distances(G, a)
        b, coincides = p / r.clamp_min(min_distance), r <= min_distance
        at_model = nu is None and bool(coincides.any())
        a = (
            _onward(G, a, b.masked_fill(coincides, 0), p[coincides].sum())
            if at_model
            else b / b.sum()
        )
    return a


def _onward(G: Tensor, a: Tensor, b: Tensor, weight: Tensor) -> Tensor:
    """Return coefficients after a step from a point on which models of weight ``weight`` lie, with
    b = 0: as far as the others' pull is stronger (Vardi, Zhang, PNAS 2000). Weiszfeld's steps stay,
    and a liar could put its model where they begin.
    """
    total = b.sum()
    if not total:  # all are there
        return a
    c = b - total * a
    pull = (c @ G @ c).clamp_min(0).sqrt()
    stays = shortening(pull, weight)
    return (1 - stays) * b / total + stays * a


def weighted_median(r: Tensor, p: Tensor) -> Tensor:
    """Return the smallest of numbers r (n,) up to which lies half of the weight p (n,)."""
    ordered = r.argsort()
    reached = p[ordered].cumsum(0) >= (0.5 - SMALLEST) * p.sum()
    value: Tensor = r[ordered][reached.nonzero()[0, 0]]
    return value


def krum(G: Tensor, chosen: int, neighbours: int) -> Tensor:
    """Return coefficients (n,): 1 / m for the m chosen models, whose scores are the smallest."""
    n = len(G)
    square = (G.diagonal() + G.diagonal().unsqueeze(1) - 2 * G).clamp_min(0)
    square.fill_diagonal_(-1.0)  # itself first, whatever rounding makes of the others
    score = square.sort(1).values[:, 1 : 1 + neighbours].sum(1)
    best = score.sort(stable=True).indices[:chosen]
    return torch.zeros(n, dtype=G.dtype).index_fill(0, best, 1 / chosen)


def median(W: Tensor) -> Tensor:
    """Return the median (k,) by coordinate of models (n, k), of an even number the middle of
    two.
    """
    n = len(W)

    def middle(rows: Tensor) -> Tensor:
        ordered = rows.sort(0).values
        low, high = ordered[(n - 1) // 2], ordered[n // 2]
        return low + (high - low) / 2

    return chunked(W).apply(middle).compute()


def trimmed(W: Tensor, f: int) -> Tensor:
    """Return the mean (k,) by coordinate without the f largest and f smallest numbers."""
    n = len(W)

    def inner(rows: Tensor) -> Tensor:
        left = rows.sort(0).values[f : n - f]
        return left[0] + (left - left[0]).mean(0)

    return chunked(W).apply(inner).compute()


def combined(W: Tensor, w: Tensor, a: Tensor) -> Tensor:
    """Return w + sum_i a_i D_i (k,), counted from the model with the largest coefficient: exactly
    this if all are equal and a sums to 1, and free of the rounding of others that are huge.
    """
    k = int(a.argmax())
    remainder = float(1 - a.sum())
    mean: Tensor = W[k] + a.to(W) @ (chunked(W) - W[k])
    return mean if abs(remainder) < SMALLEST else mean + remainder * (w - W[k])


def repeated(row: Tensor, n: int) -> Tensor:
    """Return one row (k,) for all n clients (n, k), without copies: any weights have it as their
    mean.
    """
    return row.unsqueeze(0).expand(n, -1)


def tolerated(n: int, share: float) -> int:
    """Return f of n clients: the share of them rounded down, and fewer than half."""
    return min(floored(share, n), (n - 1) // 2)
