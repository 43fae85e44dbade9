"""A client of NVFlare's simulator; see ``nvflare_rounds.py``."""

import nvflare.client as flare
import torch
import turns
from task import Cnn, Task, arguments, right, train


def main() -> None:
    """Serve rounds until there are no more."""
    given = arguments()
    torch.set_num_threads(given.threads)
    task = Task(given.folder)
    s, net = task.settings, Cnn()
    flare.init()
    client = int(flare.get_site_name().rpartition("-")[2]) - 1
    (x, y), test = task.part("train", client), task.part("test", client)
    while flare.is_running():
        got = flare.receive()
        if got is None:
            break
        turns.begin(int(got.current_round) + 1)
        net.load_state_dict({k: torch.as_tensor(v) for k, v in got.params.items()})
        if len(test[1]):
            turns.tell(int(got.current_round), right(net, *test) / len(test[1]), len(test[1]))
        train(net, x, y, s)
        flare.send(flare.FLModel(params=net.state_dict(), meta={"NUM_STEPS_CURRENT_ROUND": len(y)}))


main()
