"""Epsilon as a server can work it out for people who look on: a bound, since each silo keeps its own account."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pomona.core.errors import ConfigError
from pomona_federation.agreement import Federation


@dataclass
class PrivacyAccount:
    """Counts what a federation's rounds cost; what was worked out once is kept. Without privacy nothing is loaded."""

    federation: Federation
    _known: dict[tuple[int, int], float | None] = field(default_factory=dict)

    def bounds(self, standing: Mapping[str, Any]) -> dict[str, float | None]:
        """By silo, the most epsilon that its rounds can have cost, the one that goes on now included.

        It follows from the agreed settings and the samples that each silo has registered, by the RDP accountant, which
        is quick and never below the silo's own account. Empty without privacy; None where Opacus is not installed.

        Args:
            standing: as ``status.server`` says it.
        """
        if "privacy" not in self.federation.run:
            return {}
        last = standing["round"] + (standing["state"] == "running")
        members = [s for s in standing["silos"] if s["samples"] and s["joined"]]
        rounds = {s["silo"]: max(0, min(s["left"] or last, last) - s["joined"] + 1) for s in members}
        return {s["silo"]: self._kept(s["samples"], rounds[s["silo"]]) for s in members}

    def _kept(self, samples: int, rounds: int) -> float | None:
        if (samples, rounds) not in self._known:
            try:
                self._known[samples, rounds] = self._bound(samples, rounds)
            except ConfigError:  # no accountant here, or none that can count this
                self._known[samples, rounds] = None
        return self._known[samples, rounds]

    def _bound(self, samples: int, rounds: int) -> float:
        from pomona.privacy.epsilon_projection import projected_epsilon

        config = self.federation.config()
        assert config.privacy
        settings = config.privacy.model_copy(update={"accountant": "rdp"})
        asked = config.method.method().card.gradients
        return projected_epsilon(settings, asked, samples, config.batch_size, config.local_epochs, rounds)
