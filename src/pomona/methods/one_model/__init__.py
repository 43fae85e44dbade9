"""Methods that train one model for all clients."""
