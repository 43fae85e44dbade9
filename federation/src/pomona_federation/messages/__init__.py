"""What server and silos send each other: bodies, signed messages, pieces, tensors as bytes."""
