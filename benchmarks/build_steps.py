"""Processor time of steps, outputs and methods' rounds, of this build and of others in turns.

    python benchmarks/build_steps.py [--quick] [SRC ...]

A ``SRC`` is the ``src`` folder of another checkout, behind the folder of its native engine and a
colon if that is not the installed one. Native engine where there is one, one thread, images of
noise. Each turn is a fresh process per build, in which a figure is the median of three:
milliseconds of a step on one batch, of the outputs of an image (512 at once), and of a round of 12
clients with 230 to 235 images each (``cnn``, batch 10, without evaluation; from the third on), one
client a call, or 12 (APPLE's default).
"""

from timing import Table, Times, answered, builds, chosen, engines_here, publish

PROGRAM = """
import statistics, sys
from pathlib import Path
import pomona
sys.path.insert(0, str(Path(pomona.__file__).parents[2] / "benchmarks"))
import torch
import methods, native_step
from rounds import Rounds, noise, scenario_of
from pomona.config import resolve

torch.set_num_threads(1)
engine, seconds = sys.argv[1], float(sys.argv[2])
images = noise(2 * native_step.EVALUATED)
twelve = noise(round(12 * 24 * 10 * 0.97 / (0.8 * 0.85)))


def rounds(name, together=1):
    settings = {**methods.settings_of(name, 12), "rows_per_call": int(together)}
    config = resolve(methods.DATA, methods.CNN, settings, {"engine": engine})
    run = Rounds(scenario_of(config, twelve))
    run.run()
    run.run()
    return run.run


for name in sys.argv[3:]:
    kind, *rest = name.split("|")
    if kind == "round":
        work = rounds(*rest)
    else:
        model, batch, precision = rest
        parameters = model, int(batch), precision, engine, images, []
        scenario = native_step.scenario(*parameters)
        work = native_step.step(scenario) if kind == "step" else native_step.evaluation(scenario)
        work()
    times = []
    for _ in range(3):
        began = cpu_seconds()
        repeated = 0
        while not repeated or cpu_seconds() - began < seconds:
            work()
            repeated += 1
        times.append((cpu_seconds() - began) / repeated)
    print(1e3 * statistics.median(times) / (native_step.EVALUATED if kind == "outputs" else 1))
"""
STEPS = [
    f"step|{model}|{batch}|{precision}"
    for model, batch in (("cnn", 10), ("cnn", 64), ("cnn", 256), ("lenet", 10), ("lenet", 256))
    for precision in ("fp32", "bf16")
]
FULL = (
    [
        *STEPS,
        *(f"step|mlp|{batch}|fp32" for batch in (10, 256)),
        *(f"outputs|cnn|10|{precision}" for precision in ("fp32", "bf16")),
        *(
            f"round|{m}"
            for m in ("fedavg", "fedala", "fedfomo", "apfl", "ditto", "fedamp", "apple", "apple|12")
        ),
    ],
    0.1,
    3,
)
QUICK = ["step|mlp|10|fp32", "outputs|mlp|10|fp32", "round|fedavg"], 0.01, 1


def main(size: tuple[list[str], float, int], arguments: list[str]) -> list[Table]:
    """Measure and print."""
    names, shortest, turns = size
    sources = builds(arguments)
    answers: dict[str, list[list[float]]] = {build: [] for build in sources}
    for _ in range(turns):
        for build, source in sources.items():
            fields = answered(source, PROGRAM, engines_here()[-1], str(shortest), *names)
            answers[build].append([float(field) for field in fields])
    tables = [
        Times({build: [turn[k] for turn in answers[build]] for build in sources})
        for k in range(len(names))
    ]
    rows: dict[str, Table] = {
        f"{name.replace('|', ' ')}, {build}": {
            "median ms": times.median(build),
            "min ms": min(times.seconds[build]),
            "max ms": max(times.seconds[build]),
            "times as fast": times.cost(next(iter(sources)), build),
        }
        for name, times in zip(names, tables, strict=True)
        for build in sources
    }
    return [publish("Steps, outputs and rounds of builds", rows, turns, threads=1)]


if __name__ == "__main__":
    main(*chosen(QUICK, FULL))
