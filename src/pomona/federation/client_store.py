"""What a process stores of its clients: states, recorded models, copies of others' models."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from pomona.core.round import Ids, Roster
from pomona.core.state import Lazy, NamedTensors, apply, flatten, meta_tensor, meta_tensors, rebuild
from pomona.federation.client_states import PlaceState, in_memory
from pomona.federation.recorded_models import ModelChoice, Observed, RecordedModels
from pomona.federation.stale_models import StaleModels
from pomona.methods.base import Client, Initial
from pomona.storage.equal_tensors import SharedRows


class _Trained(NamedTuple):
    """A client's results of training in a visit, until the round is committed: its state, and
    models to keep.
    """

    state: Any
    observed: Observed | None


class ClientStore:
    """The clients' committed states and models, and the results of the visit in progress.

    Attributes:
        recorded: the models that are written, or asked for.
        copies: stored copies of other clients' models.

    The arguments are those of ``ClientRuntime``.
    """

    def __init__(
        self,
        client: Client,
        initial: Initial,
        seed: int,
        place_state: PlaceState,
        choice: ModelChoice | None,
        copies: StaleModels | None,
    ) -> None:
        self._client, self._initial, self._seed = client, initial, seed
        self._place_state = place_state
        self.recorded = RecordedModels(choice or ModelChoice())
        self.copies = copies or StaleModels.in_memory(client.keeps, initial)
        self._states: dict[int, Any] = {}
        self._pending: dict[int, _Trained] = {}
        self._rows = SharedRows()

    def add_clients(self, ids: Ids, roster: Roster, w: Tensor | None) -> None:
        """Create the initial states of clients that join; they start from ``w`` (d,), or the run's
        initial models.
        """
        for client in ids:
            self._states[client] = self._place_state(
                self._client.start(self._initial.instead(w), roster, (client,), self._seed)
            )
        self.copies.add_clients(ids, roster, w)

    def state(self, client: int) -> Any:
        """Return a client's committed state; None before it has begun."""
        return self._states.get(client)

    def shared(self, tensor: Tensor) -> Tensor:
        """Return a tensor that shares memory with another of identical bytes, if there is one."""
        return self._rows.shared(tensor)

    def discard(self) -> None:
        """Discard what the last visit set aside."""
        self._pending = {}

    def set_aside(self, client: int, state: Any, observed: Observed | None) -> None:
        """Keep a client's results of training until ``commit``."""
        self._pending[client] = _Trained(self._place_state(state), observed)

    def commit(self, ids: Sequence[int]) -> None:
        """Commit the last visit's training for these clients; all others are unchanged.

        This includes states, copies, and the models for the record. A client whose round does not
        count therefore has those of its last committed round in which models were kept, and none
        before.
        """
        accepted = set(ids)
        committed = {i: trained for i, trained in self._pending.items() if i in accepted}
        self._states |= {i: trained.state for i, trained in committed.items()}
        self.copies.commit(committed)
        for client, trained in committed.items():
            if trained.observed:
                self.recorded.update(client, trained.observed)
        self.discard()

    def stored(self, client: int) -> dict[str, Tensor]:
        """Return all that a checkpoint needs of a client besides its ``copies``, by dotted path."""
        return flatten(self.state(client), f"client.{client}") | self.recorded.stored(client)

    def private(self, client: int) -> dict[str, Tensor]:
        """Return the tensors of a client's state that its method declares private."""
        tensors = {
            path.rpartition(".")[2]: t for path, t in flatten(self.state(client), "state").items()
        }
        return {name: in_memory(t) for name, t in tensors.items() if name in self._client.private}

    def restore(self, ids: Sequence[int], tensors: NamedTensors, roster: Roster) -> None:
        """Restore clients that have begun, the inverse of ``stored`` and ``copies.stored``.

        Raises CheckpointError for other tensors.
        """
        self.copies.restore(ids, tensors, roster)
        states: dict[int, dict[str, Tensor]] = {client: {} for client in ids}
        for path, shape in meta_tensors(tensors).items():
            if path.startswith("client.") and owner(path) in states:
                states[owner(path)][path] = shape
        for client, shapes in states.items():
            template = apply(
                meta_tensor, self._client.start(self._initial, roster, (client,), self._seed)
            )
            state = Lazy(shapes, tensors.__getitem__)
            self._states[client] = self._place_state(rebuild(template, state, f"client.{client}"))
        for path in tensors:
            if path.startswith(("kept.", "chosen.")) and owner(path) in states:
                self.recorded.restore(path, self.shared(tensors[path]))


def owner(path: str) -> int:
    """Return the client whose tensor of ``stored`` this is."""
    return int(path.split(".")[1])
