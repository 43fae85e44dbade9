"""Key pairs, certificates and signatures."""
