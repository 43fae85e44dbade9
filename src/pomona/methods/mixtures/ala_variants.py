"""ALA combined with other methods whose clients start local training from one received model.

Zhang, Hua, Wang, Song, Xue, Ma, Guan. FedALA: adaptive local aggregation for personalized federated
learning. AAAI 2023 (arXiv 2212.01197), table 4 ("ALA as a module").

The wrapped method runs as it is, from ALA's start; a proximal centre stays the received model, for
FedAMP the cloud model u_i. A method with a personal model keeps that as its headline.

Not available for APPLE, FedFomo, LG-FedAvg and MOCHA, which have no single received model to start
from; FedRep, which receives no last layer for the weights; and PartialFed, which mixes the two
models itself. Table 4 has the last two, but neither paper nor code explains how; at its p = 1 ALA
does not change FedRep. FedAvg with ALA is ``fedala``.
"""

from dataclasses import replace
from typing import Any

from pomona.methods import base
from pomona.methods.mixtures.fedala import ALA, adaptive, adaptive_card
from pomona.methods.mixtures.fedamp import FedAMP
from pomona.methods.one_model.fedprox import FedProx
from pomona.methods.personal_regularisation.ditto import Ditto
from pomona.methods.personal_regularisation.fedphp import FedPHP
from pomona.methods.personal_regularisation.per_fedavg import PerFedAvg
from pomona.methods.personal_regularisation.pfedme import PFedMe
from pomona.methods.suffixes import with_suffix


def with_ala(
    settings_class: type[base.MethodSettings],
    personal: bool = False,
    model: str = "model",
    replaced_keys: tuple[str, ...] = (),
) -> type[base.MethodSettings]:
    """Return settings that combine a method's with ALA's in one section; ALA runs before local
    training.

    Args:
        settings_class: the method's settings; the new ones are the method ``NAME+ala``, and their
            class is named as the given one, with ALA at the end.
        personal: whether ALA's start is the method's headline model.
        model: the received model from which local training starts.
        replaced_keys: the method's keys that ALA replaces; they are not available.
    """

    def method(settings: Any) -> base.Method:
        inner = settings_class.method(settings)
        client = adaptive(inner.client, settings, personal, model)
        return replace(inner, client=client, card=adaptive_card(inner.card, settings, personal))

    fixed = {key: settings_class.model_fields[key].default for key in replaced_keys}
    return with_suffix(settings_class, "ALA", ALA, method, fixed=fixed)


FedProxALA = with_ala(FedProx, personal=True)
PerFedAvgALA = with_ala(PerFedAvg)
PFedMeALA = with_ala(PFedMe)
DittoALA = with_ala(Ditto)  # its global part trains from ALA's start
FedPHPALA = with_ala(FedPHP)
# the start is between the cloud model and the own one
FedAMPALA = with_ala(FedAMP, model="cloud", replaced_keys=("start",))
