"""FedJAX on the task: python fedjax_rounds.py TASK fedavg ROUNDS: FedAvg by its own algorithm.

XLA uses all cores. FedJAX's other way, a device for each core, fails with today's JAX. The network
is written in JAX, with PyTorch's parameters.
"""

from typing import Any

import fedjax
import jax
import numpy as np
import turns
from jax import lax, nn
from task import AT_ONCE, Task, arguments

jax.tree_map = jax.tree.map  # FedJAX calls it by this name, which JAX has removed

Weights = list[Any]


def convolved(x: Any, kernel: Any, bias: Any) -> Any:
    """Convolution of (B, H, W, C), ReLU, and the maximum of each 2 x 2."""
    y = lax.conv_general_dilated(
        x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "OIHW", "NHWC")
    )
    window = (1, 2, 2, 1)
    return lax.reduce_window(nn.relu(y + bias), -np.inf, lax.max, window, window, "VALID")


def logits(weights: Weights, batch: Any) -> Any:
    """The task's network: convolutions if there are images, then two linear layers."""
    x, layers = batch["x"], list(zip(weights[::2], weights[1::2], strict=True))
    if x.ndim == 4:
        for kernel, bias in layers[:2]:
            x = convolved(x, kernel, bias)
        x = x.transpose(0, 3, 1, 2).reshape(len(x), -1)
    (w1, b1), (w2, b2) = layers[-2:]
    return nn.relu(x @ w1.T + b1) @ w2.T + b2


def samples(x: Any, y: Any) -> dict[str, Any]:
    """Inputs with channels last, and classes."""
    x = x.movedim(1, -1) if x.ndim == 4 else x
    return {"x": x.contiguous().numpy(), "y": y.numpy().astype(np.int32)}


def main() -> None:
    """Run."""
    options = arguments()
    task = Task(options.folder)
    s, test = task.settings, fedjax.ClientDataset(samples(*task.pooled("test")))
    start = [p.detach().numpy() for p in task.network().parameters()]
    model = fedjax.Model(
        init=lambda _: start,
        apply_for_train=lambda weights, batch, _: logits(weights, batch),
        apply_for_eval=logits,
        train_loss=lambda batch, out: fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], out),
        eval_metrics={"accuracy": fedjax.metrics.Accuracy()},
    )
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        fedjax.model_grad(model),
        fedjax.optimizers.sgd(s["lr"]),
        fedjax.optimizers.sgd(1.0),
        # without a seed: with one, each round has the same order of batches
        fedjax.ShuffleRepeatBatchHParams(batch_size=s["batch_size"], num_epochs=s["local_epochs"]),
    )
    clients = fedjax.InMemoryFederatedData(
        {b"%d" % i: samples(*pair) for i, pair in enumerate(task.samples_by_client("train"))}
    )
    state, key = algorithm.init(jax.device_put(start)), jax.random.PRNGKey(s["seed"])
    for number in range(1, options.rounds + 1):
        turns.wait_for(number)
        key, *keys = jax.random.split(key, s["clients"] + 1)
        cohort = [(i, data, k) for (i, data), k in zip(clients.clients(), keys, strict=True)]
        state, _ = algorithm.apply(state, cohort)
        batches = test.padded_batch(batch_size=AT_ONCE)
        accuracy = float(fedjax.evaluate_model(model, state.params, batches)["accuracy"])
        turns.report(number, accuracy, len(test))
    turns.wait_for(options.rounds + 1)


if __name__ == "__main__":
    main()
