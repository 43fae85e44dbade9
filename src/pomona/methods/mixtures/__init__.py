"""Methods in which a client's model is a mixture of models."""
