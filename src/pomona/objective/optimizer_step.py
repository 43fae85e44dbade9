"""A step of the local optimizer on rows, and its state: SGD, Adam and AdamW."""

from pomona.core.lazy_torch import Tensor, torch
from pomona.core.round import Round
from pomona.core.training_settings import Adam


def optimizer_step(w: Tensor, g: Tensor, moments: Tensor, round_: Round) -> None:
    """Take one step of the round's optimizer on rows w (a, d), in place, with gradients g (a, d)
    and their moments.

    PyTorch's conventions: sgd with v <- momentum v + g + weight_decay w;  w <- w - lr v. Decay is
    added to the gradient for sgd and adam, and shrinks the row for adamw. Each row of g is first
    clipped to ``max_grad_norm``, if set.
    """
    optimizer = round_.optimizer
    if optimizer.max_grad_norm is not None:
        g = g * (optimizer.max_grad_norm / (g.norm(dim=1, keepdim=True) + 1e-6)).clamp_max(1)
    if round_.weight_decay and optimizer.name == "adamw":
        w.mul_(1 - round_.lr * round_.weight_decay)
    elif round_.weight_decay:
        g = g + round_.weight_decay * w
    if optimizer.name != "sgd":
        _adam(w, g, moments, round_)
        return
    if round_.momentum:
        # one pass over memory, not two
        g = torch.add(g, moments, alpha=round_.momentum, out=moments)
    w.sub_(g, alpha=round_.lr)


def _adam(w: Tensor, g: Tensor, moments: Tensor, round_: Round) -> None:
    """Apply Kingma and Ba (2015), Algorithm 1: m <- mean of g, v <- mean of g^2, w <- w - lr m^ /
    (sqrt(v^) + eps).
    """
    optimizer, d = round_.optimizer, w.shape[1]
    assert isinstance(optimizer, Adam)
    m, v, count = moments[:, :d], moments[:, d : 2 * d], moments[:, 2 * d :].add_(1)
    m.lerp_(g, 1 - optimizer.beta1)
    v.mul_(optimizer.beta2).addcmul_(g, g, value=1 - optimizer.beta2)
    t = count.double()  # 1 - beta2^t loses four digits in single precision
    rate = round_.lr / (1 - optimizer.beta1**t)
    root = v.sqrt().div_((1 - optimizer.beta2**t).sqrt().to(w)).add_(optimizer.eps)
    w.sub_(torch.div(m, root, out=root).mul_(rate.to(w)))


def optimizer_state(W: Tensor, round_: Round) -> Tensor:
    """Return the optimizer state of rows W (n, d): zeros at the start of each round.

    One row per model, so that prefixes are views: (n, d) for momentum, (n, 0) without; for adam and
    adamw m, v and the number of steps (n, 2 d + 1).
    """
    n, d = W.shape
    if round_.optimizer.name != "sgd":
        return W.new_zeros(n, 2 * d + 1)
    return torch.zeros_like(W) if round_.momentum else W.new_empty(n, 0)


def state_mask(mask: Tensor, moments: Tensor) -> Tensor:
    """Return a mask over rows (n, d) as one over their moments (n, k), which always has the number
    of steps.
    """
    times, count = divmod(moments.shape[1], mask.shape[1])
    return torch.cat([mask.repeat(1, times), mask.new_ones(len(mask), count)], 1)
