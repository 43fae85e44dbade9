"""Settings of each round: learning rates follow schedules, as pure functions of the round number."""

from math import cos, pi

from pomona.config import Config
from pomona.core.round import Round


def round_of(config: Config, number: int) -> Round:
    """Return the settings of round ``number`` (1 to rounds; rounds + 1 is the closing visit)."""
    decay = config.lr_decay ** (number - 1) * scheduled(config, number)
    return Round(
        number=number,
        total=config.rounds,
        lr=config.rate * decay,
        base_lr=config.rate,
        decay=decay,
        epochs=config.local_epochs,
        batch_size=config.batch_size,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        seed=config.seed,
        optimizer=config.optimizer,
    )


def scheduled(config: Config, number: int) -> float:
    """Return the factor of warm-up and ``lr_schedule`` for round ``number``; constant after the last round."""
    number, warmup = min(number, config.rounds), config.lr_warmup_rounds
    if number <= warmup:
        return number / (warmup + 1)
    match config.lr_schedule:
        case "cosine":
            return (1 + cos(pi * (number - 1 - warmup) / (config.rounds - warmup))) / 2
        case "steps":
            return config.lr_factor ** sum(number > milestone for milestone in config.lr_milestones)
        case "constant":
            return 1.0
