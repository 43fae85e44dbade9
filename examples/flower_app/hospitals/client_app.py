"""The client's app: its training is what it was, and ``personalize`` calls it."""

from functools import partial

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from hospitals.task import Net, load_data
from hospitals.task import test as test_fn
from hospitals.task import train as train_fn
from pomona_federation.flower import personalize

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train this hospital's model, and test it."""
    model = Net()
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    trainloader, valloader = load_data(context.node_config["partition-id"])
    fit = partial(
        train_fn,
        epochs=context.run_config["local-epochs"],
        lr=msg.content["config"]["lr"],
        device=device,
    )
    loaders = {"train": trainloader, "test": valloader}
    return personalize(
        msg, context, model, loaders, train=fit, test=partial(test_fn, device=device)
    )
