"""An app of Flower, as its documentation shows one, whose hospitals get models of their own."""
