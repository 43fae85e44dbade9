"""ALA before other methods: those whose clients start local training from one received model.

Zhang, Hua, Wang, Song, Xue, Ma, Guan. FedALA: adaptive local aggregation for personalized federated learning. AAAI
2023, table 4 ("ALA as a module"). The wrapped method runs as it is, from ALA's start; a proximal centre stays the
received model, for FedAMP the cloud model u_i. A method that names a personal model of its own is still judged by that.

Not offered, because there is no one received model to start from: APPLE, FedFomo, LG-FedAvg, MOCHA; FedRep, which
receives a part of one; PartialFed, which trains two models side by side (table 4 has both, but not how). FedAvg with
ALA is ``fedala``.
"""

from typing import Literal

from pomona.methods.base import Method
from pomona.methods.ditto import Ditto
from pomona.methods.fedala import ALA, adaptive, adaptive_card
from pomona.methods.fedamp import FedAMP
from pomona.methods.fedphp import FedPHP
from pomona.methods.fedprox import FedProx
from pomona.methods.per_fedavg import PerFedAvg
from pomona.methods.pfedme import PFedMe


def plugged(method: Method, settings: ALA, personal: bool, model: str = "model") -> Method:
    """A method with ALA before its local training; ``personal``: whether ALA's start is the model it is judged by."""
    card = adaptive_card(method.card, settings, personal)
    return Method(method.server, adaptive(method.client, settings, personal, model), card, method.caution)


class FedProxALA(FedProx, ALA):
    """FedProx from ALA's start."""

    name: Literal["fedprox+ala"] = "fedprox+ala"  # type: ignore[assignment]

    def method(self) -> Method:
        """The two halves."""
        return plugged(super().method(), self, personal=True)


class PerFedAvgALA(PerFedAvg, ALA):
    """Per-FedAvg from ALA's start."""

    name: Literal["per-fedavg+ala"] = "per-fedavg+ala"  # type: ignore[assignment]

    def method(self) -> Method:
        """The two halves."""
        return plugged(super().method(), self, personal=False)


class PFedMeALA(PFedMe, ALA):
    """PFedMe from ALA's start."""

    name: Literal["pfedme+ala"] = "pfedme+ala"  # type: ignore[assignment]

    def method(self) -> Method:
        """The two halves."""
        return plugged(super().method(), self, personal=False)


class DittoALA(Ditto, ALA):
    """Ditto whose global part trains from ALA's start."""

    name: Literal["ditto+ala"] = "ditto+ala"  # type: ignore[assignment]

    def method(self) -> Method:
        """The two halves."""
        return plugged(super().method(), self, personal=False)


class FedPHPALA(FedPHP, ALA):
    """FedPHP from ALA's start."""

    name: Literal["fedphp+ala"] = "fedphp+ala"  # type: ignore[assignment]

    def method(self) -> Method:
        """The two halves."""
        return plugged(super().method(), self, personal=False)


class FedAMPALA(FedAMP, ALA):
    """FedAMP whose local solve begins at ALA's start between the cloud model and the own one."""

    name: Literal["fedamp+ala"] = "fedamp+ala"  # type: ignore[assignment]

    def method(self) -> Method:
        """The two halves."""
        return plugged(super().method(), self, personal=False, model="cloud")
