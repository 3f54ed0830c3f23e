"""Hosts beside trio: their faces, and what may go wrong around them."""
