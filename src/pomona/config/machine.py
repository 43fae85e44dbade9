"""Settings of the machine that computes a run: processes, engine, device, disk and tracker."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from pomona.core.lazy_torch import torch
from pomona.core.settings import Settings

TRACKERS = ("mlflow", "tensorboard", "trackio", "wandb")
LOCAL = ("workers", "cluster", "state_memory", "checkpoint_every", "data.dir", "model.init")
"""Settings of the machine that a run uses."""
INERT = (*LOCAL, "privacy.epsilon_budget")
"""Settings that do not affect any number of a run."""
FREE = (*INERT, "membership.adapt_rounds")
"""Settings that may change between the parts of a run, since committed numbers do not depend on
them.
"""


def _device(value: Any) -> Any:
    """Resolve a device by name; ``auto`` becomes the available one, so that it is recorded."""
    return ("cuda" if torch.cuda.is_available() else "cpu") if value == "auto" else value


class MachineSettings(Settings):
    """Where a run is computed: another choice changes the last bits of its numbers at most.

    Attributes:
        workers: worker processes; one per core if not set
        cluster: Ray cluster that runs the workers: host:port, with this machine as a node; or
            ray: the one that RAY_ADDRESS names, else this machine
        state_memory: clients' states larger than this share of the machine's memory are kept on
            disk
        rows_per_call: clients that are trained in one call; if not set, all on a GPU; on a CPU 1,
            with the native engine as many as share its cache, of apple up to 16
        engine: the engine of gradients and outputs: torch (PyTorch); native (the package
            pomona-native, on a CPU, for networks of layers that it supports); or another
            installed engine; auto: native if possible, else torch; the default in a federation is
            torch
        device: device of training; auto: cuda if PyTorch sees a GPU, else cpu
        checkpoint_every: rounds between checkpoints; the last round always has one
        track: tracker that also receives settings and metrics: mlflow:URI, tensorboard:FOLDER,
            trackio:PROJECT or wandb:PROJECT; what follows the colon may be left out
    """

    workers: int | None = Field(None, ge=1, le=10**4)
    cluster: str | None = Field(None, pattern=r"^(ray|[A-Za-z0-9_.-]+:[0-9]{1,5})$")
    state_memory: float = Field(0.5, gt=0, le=1)
    rows_per_call: int | None = Field(None, ge=1, le=10**4)
    engine: Annotated[
        str, WithJsonSchema({"anyOf": [{"enum": ["auto", "torch", "native"]}, {"type": "string"}]})
    ] = Field("auto", pattern="^[a-z0-9-]{1,40}$")
    device: Annotated[
        Literal["cpu", "cuda"],
        BeforeValidator(_device),
        WithJsonSchema({"enum": ["auto", "cpu", "cuda"]}),
    ] = "cpu"
    checkpoint_every: int = Field(1, ge=1, le=10**6)
    track: str | None = Field(
        None,
        exclude=True,  # a run is the same whatever tracks it, and an address may have a password
        repr=False,
        json_schema_extra={"pattern": f"^({'|'.join(TRACKERS)})(:|$)"},
    )

    @property
    def engine_named(self) -> bool:
        """Whether an engine other than PyTorch must compute the run."""
        return self.engine not in {"auto", "torch"}

    @model_validator(mode="after")
    def _tracked(self) -> Self:
        """Checked here, since the error of a field's check would show the value."""
        name = None if self.track is None else self.track.partition(":")[0]
        if name is not None and name not in TRACKERS:
            raise ValueError(f"track: unknown tracker; use one of {', '.join(TRACKERS)}")
        return self
