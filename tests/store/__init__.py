"""Tests of the store: its tier, its objects, and what passes between it and L2."""
