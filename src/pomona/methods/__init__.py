"""One file per paper: settings, server half, client half; pure functions on rows. The table of all stands here."""

from typing import Annotated, get_args

from pydantic import Field

from pomona.methods.apfl import Apfl
from pomona.methods.apple import Apple
from pomona.methods.cfl import CFL
from pomona.methods.customised import FedAvgC, FedProxC
from pomona.methods.ditto import Ditto
from pomona.methods.fedala import FedAla
from pomona.methods.fedamp import FedAMP, HeurFedAMP
from pomona.methods.fedavg import FedAvg, FedAvgFT, FedAvgLocal
from pomona.methods.fedavgdata import FedAvgData
from pomona.methods.feddyn import FedDyn
from pomona.methods.fedfomo import FedFomo
from pomona.methods.fedfomoma import FedFomoMA
from pomona.methods.fedphp import FedPHP
from pomona.methods.fedprox import FedProx, FedProxFT
from pomona.methods.fedrep import FedRep
from pomona.methods.lgfedavg import LGFedAvg
from pomona.methods.mocha import Mocha
from pomona.methods.partialfed import PartialFed
from pomona.methods.perfedavg import PerFedAvg
from pomona.methods.pfedme import PFedMe
from pomona.methods.scaffold import Scaffold
from pomona.methods.separate import Separate
from pomona.methods.withala import DittoAla, FedAMPAla, FedPHPAla, FedProxAla, PerFedAvgAla, PFedMeAla

AnyMethod = (
    Separate
    | FedAvg
    | FedAvgLocal
    | FedAvgFT
    | FedAvgC
    | FedAvgData
    | FedProx
    | FedProxFT
    | FedProxC
    | Scaffold
    | FedDyn
    | Apfl
    | FedAMP
    | HeurFedAMP
    | FedFomo
    | FedFomoMA
    | Apple
    | FedAla
    | PerFedAvg
    | FedRep
    | PFedMe
    | Ditto
    | FedPHP
    | PartialFed
    | LGFedAvg
    | Mocha
    | CFL
    | FedProxAla
    | PerFedAvgAla
    | PFedMeAla
    | DittoAla
    | FedPHPAla
    | FedAMPAla
)
MethodSettings = Annotated[AnyMethod, Field(discriminator="name")]

METHODS: dict[str, type[AnyMethod]] = {m.model_fields["name"].default: m for m in get_args(AnyMethod)}
