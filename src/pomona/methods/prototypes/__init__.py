"""Methods that exchange the mean features of classes."""
