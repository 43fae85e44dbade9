"""How downlinks and uplinks travel: the only code that differs between a simulation and a deployment."""
