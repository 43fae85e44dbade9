"""The Gaussian mechanism on per-sample gradients: Poisson sampling, clipping and noise.

Abadi et al., Deep learning with differential privacy, CCS 2016; with Poisson sampling and a public
denominator, as its analysis requires.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pomona.privacy.accounting import rate

BELOW = 1 - 2**-20  # more than the possible rounding error of a norm


def poisson(n: int, size: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Draw a Poisson sample of range(n), ascending: each independently with probability q; may be
    empty.
    """
    return np.flatnonzero(generator.random(n) < rate(n, size))


def clipped(P: Tensor, C: float) -> Tensor:
    """Clip per-sample gradients (b, d) to norm C, float64; zeros for gradients that are not finite.

    Dropping a non-finite gradient is part of the mechanism: any sample may have norm 0. Factors and
    products are
    float64: in float32 the factor of a huge gradient is subnormal, and its rounding would exceed C.
    """
    norms = torch.linalg.vector_norm(P, dim=1, dtype=torch.float64)
    factors = (C * BELOW / norms).clamp(max=1.0)
    return torch.where(norms.isfinite().unsqueeze(1), P.double() * factors.unsqueeze(1), 0)


def gaussian(d: int, generator: np.random.Generator) -> Tensor:
    """Draw N(0, 1) (d,) float64, each number half the sum of four draws.

    A single floating-point draw can be recognised by the gaps between its possible values (Mironov,
    CCS 2012); sums make that hard (Holohan and Braghin, ESORICS 2021).
    """
    return torch.from_numpy(generator.standard_normal((4, d)).sum(0) / 2)
