"""Personal models collected from the clients at the end of a run: in files, or in memory."""

from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from pomona import personal
from pomona.federation.client_runtime import ClientRuntime
from pomona.federation.transport import LocalTransport
from pomona.scenario import Scenario


def held_models(transport: LocalTransport, clients: int, headline: tuple[str, str]) -> dict[int, Mapping[str, Tensor]]:
    """Return the model that each client is judged by, of those that have one."""
    each = (transport.collect(ClientRuntime.models, [i])[0] for i in range(clients))
    return {i: {k: t.cpu().clone() for k, t in m[headline].items()} for i, m in enumerate(each) if headline in m}


def save_models(folder: Path, transport: LocalTransport, scenario: Scenario, headline: tuple[str, str]) -> None:
    """Write one safetensors file a client: the model it is judged by, and apart from it what it keeps to itself.

    One client at a time: a federation's models together need not fit into memory.
    """
    (folder / "models").mkdir(exist_ok=True)
    personal.save_frozen(folder / "models", scenario.frozen)
    for i in range(scenario.config.clients):
        (models,) = transport.collect(ClientRuntime.models, [i])
        (private,) = transport.collect(ClientRuntime.private, [i])
        if headline in models:
            personal.save(folder / "models" / f"client-{i:02d}.safetensors", models[headline], scenario, i, headline)
        if private:
            (folder / "private").mkdir(exist_ok=True)
            own = {k: v.cpu().contiguous() for k, v in private.items()}
            save_file(own, folder / "private" / f"client-{i:02d}.safetensors")
