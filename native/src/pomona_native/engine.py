"""Pomona's engine ``native``, by the entry point in this package's ``pyproject.toml``."""

from pomona.objective.engine import Computation, EngineError
from pomona_native import INTERFACE, __version__, kinds, load
from pomona_native.network import NativeNetwork
from pomona_native.objective import NativeObjective


class NativeEngine:
    """The engine for a kind of processor, the fastest by default.

    Raises EngineError if this processor has none.
    """

    def __init__(self, processor: str = "") -> None:
        processors = kinds()
        if not processors:
            raise EngineError("this processor has neither AVX2 nor NEON")
        processor = processor or processors[0]
        self.interface = INTERFACE
        self.package = "pomona-native"
        self.release = f"{__version__} {processor}"
        self._module = load(processor)
        self.emulates_bf16 = not self._module.BF16

    def objective(self, computation: Computation) -> NativeObjective:
        """Return the objective. Raises EngineError for what the package does not support."""
        network = NativeNetwork.build(self._module, computation)
        if computation.batch_size > network.max_batch:
            raise EngineError(
                f"a batch has {computation.batch_size} samples, a call of this network takes "
                f"{network.max_batch}; lower batch_size"
            )
        return NativeObjective(computation, network)
