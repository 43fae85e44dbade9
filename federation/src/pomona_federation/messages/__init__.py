"""Messages between server and silos: bodies, signed messages, pieces, tensors as bytes."""
