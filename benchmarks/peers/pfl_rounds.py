"""pfl (Apple's pfl-research) on the task: FedAvg. With two processes, by PyTorch's own launcher:

    torchrun --standalone --nproc_per_node=2 pfl_rounds.py TASK fedavg ROUNDS --processes 2

It evaluates each user's training data before and after training in the rounds that its evaluation
frequency names; that is switched off but for the first round, which does not count.
"""

import os
import sys
from typing import Any

import torch
import turns
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data import FederatedDataset
from pfl.data.dataset import Dataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, StringMetricName, Weighted
from pfl.model.pytorch import PyTorchModel
from task import AT_ONCE, Task, arguments
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

NAME = StringMetricName("Central val | accuracy")
LEADS = os.environ.get("RANK", "0") == "0"


class Net(nn.Module):
    """The network with the two methods that pfl requires."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """Inputs -> (B, classes) logits."""
        return self.network(x)

    def loss(self, x: Tensor, y: Tensor, eval: bool = False) -> Tensor:  # noqa: A002 - pfl's name
        """Mean cross-entropy."""
        self.eval() if eval else self.train()
        return cross_entropy(self(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor, eval: bool = True) -> dict[str, Any]:  # noqa: A002, ARG002
        """Accuracy."""
        self.eval()
        return {"accuracy": Weighted(int((self(x).argmax(1) == y).sum()), len(y))}


class Evaluated(CentralEvaluationCallback):
    """Evaluation on all test data after every round, divided among the processes; then the next
    round.
    """

    def after_central_iteration(self, _: Any, model: Any, *, central_iteration: int) -> Any:
        """Called after a round."""
        _, metrics = self._eval(model)
        if LEADS:
            turns.report(central_iteration + 1, metrics[NAME].overall_value, self.samples)
        barrier()
        turns.wait_for(central_iteration + 2)
        return False, Metrics()

    samples = 0


def barrier() -> None:
    """Wait for the other processes."""
    if torch.distributed.is_initialized():
        torch.distributed.barrier()


def main() -> None:
    """Run."""
    options = arguments()
    if options.processes > 1 and "RANK" not in os.environ:
        launch = (
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc_per_node={options.processes}",
        )
        os.execv(sys.executable, [sys.executable, *launch, *sys.argv])
    torch.set_num_threads(options.threads)
    task = Task(options.folder)
    s, test = task.settings, task.pooled("test")
    net = Net(task.network())
    users = FederatedDataset.from_slices(
        dict(enumerate(task.samples_by_client("train"))),
        get_user_sampler("minimize_reuse", list(range(s["clients"]))),
    )
    model = PyTorchModel(
        model=net,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(net.parameters(), 1.0),
    )
    evaluated = Evaluated(
        Dataset(raw_data=test), model_eval_params=NNEvalHyperParams(local_batch_size=AT_ONCE)
    )
    evaluated.samples = len(test[1])
    barrier()
    turns.wait_for(1)
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=options.rounds + 1,  # the last one never gets its turn
            evaluation_frequency=10**9,
            train_cohort_size=s["clients"],
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(
            training_data=users, val_data=users, postprocessors=[WeightByDatapoints()]
        ),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_learning_rate=s["lr"],
            local_num_epochs=s["local_epochs"],
            local_batch_size=s["batch_size"],
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=AT_ONCE),
        callbacks=[evaluated],
    )


if __name__ == "__main__":
    main()
