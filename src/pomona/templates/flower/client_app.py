"""The client's app of Flower: it trains and tests by model.py."""

from data import EFFECTS, client_loaders
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from model import network, test, train

from pomona_federation.flower import personalize

app = ClientApp()


@app.train()
def train_client(message: Message, context: Context) -> Message:
    """Do what the method asks of this client."""
    loaders = client_loaders(int(context.node_config["partition-id"]) % len(EFFECTS))
    return personalize(message, context, network(), loaders, train=train, test=test)
