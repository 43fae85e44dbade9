"""PyTorch, imported at the first use of an attribute: a wrong setting is answered without it.

For modules that the command line imports before it has checked a run's settings. ``Tensor`` and
``Module`` are for annotations, not for ``isinstance``, which takes ``torch.Tensor``.
"""

from typing import TYPE_CHECKING, Any, ForwardRef

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.nn import Module
else:

    class _LazyTorch:
        def __getattr__(self, name: str) -> Any:
            import torch

            self.__dict__ = torch.__dict__  # this method is not needed again
            return getattr(torch, name)

    torch = _LazyTorch()
    Tensor, Module = (
        ForwardRef(f"torch.{name}", module=__name__) for name in ("Tensor", "nn.Module")
    )

__all__ = ["Module", "Tensor", "torch"]
