"""One file per paper: settings, server half, client half; pure functions on rows. The table of all stands here."""

from typing import Annotated, get_args

from pydantic import Field

from pomona.methods.apfl import Apfl
from pomona.methods.apple import Apple
from pomona.methods.ditto import Ditto
from pomona.methods.fedavg import FedAvg, FedAvgFT, FedAvgLocal
from pomona.methods.feddyn import FedDyn
from pomona.methods.fedprox import FedProx, FedProxFT
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
    | Apple
    | PFedMe
    | Ditto
)
MethodSettings = Annotated[AnyMethod, Field(discriminator="name")]

METHODS: dict[str, type[AnyMethod]] = {m.model_fields["name"].default: m for m in get_args(AnyMethod)}
