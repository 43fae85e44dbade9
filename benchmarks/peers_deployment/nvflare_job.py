"""A federation of NVFlare's proof-of-concept mode whose silos do nothing; run in NVFlare's own
environment.

    python nvflare_job.py OUT SILOS ROUNDS

Writes to the file OUT its start time and the times at which the first silo got each round's model,
in seconds since 1970. Its workspace is next to OUT; provisioned kits, mutual TLS, one process per
site and job, as `nvflare poc` does.
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np


def main() -> None:
    """Run the federation to its end."""
    output, silos, rounds = Path(sys.argv[1]).absolute(), int(sys.argv[2]), int(sys.argv[3])
    os.environ["NVFLARE_POC_WORKSPACE"] = str(output.parent / "poc")
    os.environ["HOME"] = str(output.parent)  # its settings lie there
    start_time = time.time()
    from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
    from nvflare.recipe import PocEnv

    marks = output.with_suffix(".marks")
    recipe = NumpyFedAvgRecipe(
        name="noop",
        model=np.zeros(610, np.float32),
        min_clients=silos,
        num_rounds=rounds,
        train_script=str(Path(__file__).with_name("nvflare_client.py")),
        train_args=str(marks),
    )
    run = recipe.execute(PocEnv(num_clients=silos))
    run.get_result(timeout=600)
    received = [float(line) for line in marks.read_text().split()]
    output.write_text(json.dumps({"began": start_time, "received": received}))


if __name__ == "__main__":
    main()
