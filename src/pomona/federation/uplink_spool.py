"""Scratch files for a round's uplinks, so that a server's memory does not grow with the number of clients."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from pomona.federation.exchange import ClientRequest, Reply
from pomona.storage.mapped_tensor import let_go, mapped


@dataclass(frozen=True)
class UplinkSpool:
    """The uplinks of one visit: one tensor (n, ...) per name, row k for the k-th client asked.

    ``exchange.stack`` then has the rows of all clients without a copy, or moves those of some together.
    """

    ids: tuple[int, ...]
    rows: Mapping[str, Tensor]

    @classmethod
    def of(cls, request: ClientRequest, folder: Path) -> "UplinkSpool":
        """Allocate space for all answers to a request. Raises StorageError if a folder has too little."""
        n = len(request.ids)
        rows = {name: mapped((n, *like.shape), like.dtype, folder) for name, like in request.expects.items()}
        return cls(request.ids, rows)

    def kept(self, reply: Reply) -> Reply:
        """Return a reply whose uplink, of the requested form, is in the files."""
        k, uplink = self.ids.index(reply.client), {}
        for name, tensor in reply.uplink.items():
            uplink[name] = self.rows[name][k].copy_(tensor)
            let_go(uplink[name])
        return replace(reply, uplink=uplink)
