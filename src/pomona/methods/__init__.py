"""One file per paper: settings, server half, client half; pure functions on rows. The table of all stands here."""

from typing import Annotated, get_args

from pydantic import Field

from pomona.methods.apfl import Apfl
from pomona.methods.apple import Apple
from pomona.methods.cfl import CFL
from pomona.methods.ditto import Ditto
from pomona.methods.fedamp import FedAMP, HeurFedAMP
from pomona.methods.fedavg import FedAvg, FedAvgFT, FedAvgLocal
from pomona.methods.feddyn import FedDyn
from pomona.methods.fedfomo import FedFomo, FedFomoMA
from pomona.methods.fedprox import FedProx, FedProxFT
from pomona.methods.mocha import Mocha
from pomona.methods.pfedme import PFedMe
from pomona.methods.scaffold import Scaffold
from pomona.methods.separate import Separate

AnyMethod = (
    Separate
    | FedAvg
    | FedAvgLocal
    | FedAvgFT
    | FedProx
    | FedProxFT
    | Scaffold
    | FedDyn
    | Apfl
    | FedAMP
    | HeurFedAMP
    | FedFomo
    | FedFomoMA
    | Apple
    | PFedMe
    | Ditto
    | Mocha
    | CFL
)
MethodSettings = Annotated[AnyMethod, Field(discriminator="name")]

METHODS: dict[str, type[AnyMethod]] = {m.model_fields["name"].default: m for m in get_args(AnyMethod)}
