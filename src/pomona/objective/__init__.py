"""The one place that touches private data: losses and gradients of model rows on a client's samples."""
