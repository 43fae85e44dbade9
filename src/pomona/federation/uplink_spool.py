"""A round's uplinks in scratch files, so that a server's memory does not grow with the number of its clients."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from pomona.federation.exchange import ClientRequest, Reply
from pomona.storage.mapped_tensor import let_go, mapped


@dataclass(frozen=True)
class UplinkSpool:
    """The uplinks of one visit: a tensor (n, ...) a name, row k for the k-th client asked.

    ``exchange.stack`` then has the rows of all clients without a copy, or moves those of some together.
    """

    ids: tuple[int, ...]
    rows: Mapping[str, Tensor]

    @classmethod
    def of(cls, request: ClientRequest, folder: Path) -> "UplinkSpool":
        """Room for all answers to a request. Raises StorageError where a folder has none."""
        n = len(request.ids)
        rows = {name: mapped((n, *like.shape), like.dtype, folder) for name, like in request.expects.items()}
        return cls(request.ids, rows)

    def kept(self, reply: Reply) -> Reply:
        """A reply whose uplink, of the form asked for, lies in the files."""
        k, uplink = self.ids.index(reply.client), {}
        for name, tensor in reply.uplink.items():
            uplink[name] = self.rows[name][k].copy_(tensor)
            let_go(uplink[name])
        return replace(reply, uplink=uplink)
