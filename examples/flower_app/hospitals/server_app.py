"""The server's app: one of Pomona's methods in place of FedAvg."""

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

from hospitals.task import Net
from pomona_federation.flower import strategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train all hospitals' models, and print each one's accuracy."""
    model = Net()
    method = context.run_config["method"]
    result = strategy(method, model, lr=context.run_config["learning-rate"]).start(
        grid=grid,
        initial_arrays=ArrayRecord(model.state_dict()),
        num_rounds=context.run_config["num-server-rounds"],
        train_config=ConfigRecord({"lr": context.run_config["learning-rate"]}),
    )
    columns = result.personal.columns()
    for row in list(zip(*columns.values(), strict=True))[-4:]:
        print(dict(zip(columns, row, strict=True)))
