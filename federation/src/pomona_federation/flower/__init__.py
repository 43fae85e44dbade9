"""Pomona's methods inside a plain app of Flower: the server half is a strategy, the client half is
called by the app's own ``train``.

There is no agreement, consent, signature, ledger or resumption here: those need Pomona's own server
and silos.
"""

from pomona_federation.flower.client_side import personalize
from pomona_federation.flower.server_side import FlowerResult, strategy

__all__ = ["FlowerResult", "personalize", "strategy"]
