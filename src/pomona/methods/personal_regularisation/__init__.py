"""Methods that train a model of each client, held near a common one or trained alone."""
