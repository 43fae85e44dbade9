"""A client of NVFlare's simulator; see ``nvflare_rounds.py``."""

import nvflare.client as flare
import torch
import turns
from task import Task, arguments, right, train


def main() -> None:
    """Serve rounds until there are no more."""
    options = arguments()
    torch.set_num_threads(options.threads)
    task = Task(options.folder)
    s, net = task.settings, task.network()
    flare.init()
    client = int(flare.get_site_name().rpartition("-")[2]) - 1
    (x, y), test = task.client_samples("train", client), task.client_samples("test", client)
    while flare.is_running():
        received = flare.receive()
        if received is None:
            break
        turns.wait_for(int(received.current_round) + 1)
        net.load_state_dict({k: torch.as_tensor(v) for k, v in received.params.items()})
        if len(test[1]):
            turns.report(
                int(received.current_round), right(net, *test) / len(test[1]), len(test[1])
            )
        train(net, x, y, s)
        flare.send(flare.FLModel(params=net.state_dict(), meta={"NUM_STEPS_CURRENT_ROUND": len(y)}))


main()
