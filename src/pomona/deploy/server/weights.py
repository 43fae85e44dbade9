"""What the operator should know of silos' weights: who counts for more than all others together, and who is cut."""

from collections.abc import Mapping, Sequence

from pomona.core.share import weights


def counted(samples: Mapping[str, int], largest: float) -> dict[str, float]:
    """What each silo weighs in a mean over all of them, by name; ``largest`` is the largest share that was agreed."""
    return dict(zip(samples, weights(list(samples.values()), largest), strict=True))


def heavy(samples: Mapping[str, int], largest: float) -> Sequence[str]:
    """One line for each silo that is cut, or that weighs more than half of a mean over all."""
    claimed, said = counted(samples, 1.0), []
    for name, weight in counted(samples, largest).items():
        has = f"{name} claims {samples[name]} training samples, {100 * claimed[name]:.3g} % of all"
        if weight < claimed[name] * (1 - 1e-9):
            said.append(f"{has}; it counts for {100 * weight:.3g} % (largest_share = {largest:g})")
        elif weight > 0.5 and len(samples) > 1:
            said.append(f"{has}, and counts for more than all others together (largest_share = {largest:g})")
    return said
