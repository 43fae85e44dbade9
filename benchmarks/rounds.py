"""Shared parts of several benchmarks: noise images, and a method's rounds one at a time."""

from functools import partial

import numpy as np

from pomona.config import Config, fitted
from pomona.core.rng import stream
from pomona.core.round import Roster
from pomona.data.dataset import Dataset
from pomona.federation.client import ClientRuntime
from pomona.federation.exchange import ClientRequest, Groups, stack
from pomona.federation.round_plan import round_of
from pomona.federation.stale_models import StaleModels
from pomona.federation.transport import Inline, call_groups
from pomona.federation.worker_process import Processes
from pomona.federation.workers import Workers
from pomona.methods.one_model.fedavg_data import FedAvgData
from pomona.metrics.metric import Score
from pomona.partition import divide
from pomona.scenario import Scenario
from pomona.storage.row_bank import FileBank


def noise(n: int, shape: tuple[int, int, int] = (28, 28, 1)) -> Dataset:
    """Noise images with the sizes of MNIST's or others; pixel values do not affect the work."""
    draw = stream(0, "noise")
    x, y = draw.integers(0, 256, (n, *shape), dtype=np.uint8), draw.integers(0, 10, n)
    return Dataset("noise", "image", x, y, tuple("0123456789"), n, (127.5,), (127.5,))


def scenario_of(config: Config, dataset: Dataset) -> Scenario:
    """A scenario whose data need not come from a file, with the network that its method needs."""
    config = fitted(config)
    partition = divide(dataset, config.data, config.partition, config.clients, config.seed)
    if isinstance(config.method, FedAvgData):
        partition = config.method.divide(partition, dataset.y, config.seed)
    return Scenario(config, dataset, partition)


def pooled(scores: list[Score]) -> float:
    """Accuracy over all samples."""
    return sum(s.samples * (s.accuracy or 0) for s in scores) / sum(s.samples for s in scores)


class Rounds:
    """A method, one round at a time, in this process or in workers; ``watched`` as in
    ``ClientRequest``.
    """

    def __init__(
        self,
        scenario: Scenario,
        workers: int = 1,
        watched: frozenset[str] = frozenset(),
        transport: Inline | Workers | None = None,
    ) -> None:
        config = self.config = scenario.config
        self.ids, self.watched, self.method = (
            tuple(range(config.clients)),
            watched,
            config.method.method(),
        )
        self.roster = Roster(tuple(len(c.train) for c in scenario.partition.clients))

        client, initial = self.method.client, scenario.initial

        def make(copies: StaleModels | None, groups: Groups) -> ClientRuntime:
            return ClientRuntime(
                client, scenario.objective(), initial, groups, config.seed, copies=copies
            )

        row, draws = scenario.initial().nbytes, scenario.network.draws
        groups = call_groups(config, self.roster.sizes, workers, row, draws)
        if transport:
            self.transport = transport
        elif workers == 1:
            self.transport = Inline(partial(make, None), groups)
        else:
            copies = StaleModels.banked(client.keeps, initial, self.roster, FileBank.in_memory)
            crew = Processes(partial(make, StaleModels({}, initial, {})))
            self.transport = Workers(crew, groups, self.roster.sizes, workers, copies)
        self.transport.add_clients(self.ids, self.roster, None)
        self.state = self.method.server.start(scenario.initial, self.roster, config.seed)
        self.number = 0
        self.accuracy = float("nan")
        self.accuracies: dict[
            tuple[str, str], float
        ] = {}  # the same of each model and moment that was watched
        self.traffic = 0, 0  # bytes down and up of all clients in the last round

    def run(self) -> None:
        """Run one round: downlink, local training of all clients, evaluation of the watched
        moments, aggregation.
        """
        self.number += 1
        round_ = round_of(self.config, self.number)
        downlink = self.method.server.downlink(self.state, self.ids, self.roster, round_)
        arrivals = self.transport.visit(
            ClientRequest(round_, self.roster, self.ids, True, self.watched), downlink
        )
        self.traffic = sum(a.bytes_down for a in arrivals), sum(a.bytes_up for a in arrivals)
        replies = [a.reply for a in arrivals]
        uplink = stack(replies, lambda r: r.uplink)
        self.state = self.method.server.aggregate(self.state, uplink, self.ids, self.roster, round_)
        self.transport.commit(self.ids)
        scores = [s for r in replies for s in r.scores if s.split == "test" and s.samples]
        if scores:
            self.accuracy = pooled(scores)
            keys = {(s.model, s.when) for s in scores}
            self.accuracies = {
                n: pooled([s for s in scores if (s.model, s.when) == n]) for n in keys
            }

    def close(self) -> None:
        """End the workers."""
        self.transport.close()
