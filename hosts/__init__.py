"""Hosts beside trio: where a cache lives when the engine around it is no trio program."""
