"""Who somebody is: key pairs, certificates, signatures."""
