"""NVFlare's simulator on the task: python nvflare_rounds.py TASK fedavg ROUNDS --processes 2:
FedAvg.

The clients, ``nvflare_client.py``, evaluate the model that they receive on their own test data,
then train it; the simulator runs as many at a time as there are processes. Its workspace is in the
task's folder.
"""

from pathlib import Path

from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv
from task import Task, arguments


def main() -> None:
    """Run."""
    options = arguments()
    folder = options.folder.absolute()
    task = Task(folder)
    clients = task.settings["clients"]
    recipe = FedAvgRecipe(
        name="peers",
        min_clients=clients,
        num_rounds=options.rounds + 1,  # the last one never gets its turn
        model=task.network(),
        train_script=str(Path(__file__).with_name("nvflare_client.py")),
        train_args=f"{folder} {options.method} {options.rounds} --threads {options.threads}",
    )
    recipe.execute(
        SimEnv(
            num_clients=clients,
            num_threads=options.processes,
            workspace_root=str(folder / "nvflare"),
        )
    )


if __name__ == "__main__":
    main()
