"""Methods that share some layers or parameters and keep the others."""
