"""The server's app of Flower: one of Pomona's methods in place of FedAvg."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from model import network

from pomona_federation.flower import strategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run all rounds, and print the score."""
    model = network()
    method, rounds = str(context.run_config["method"]), int(context.run_config["rounds"])
    result = strategy(method, model).start(grid, ArrayRecord(model.state_dict()), rounds)
    print(method, result.personal.score)
