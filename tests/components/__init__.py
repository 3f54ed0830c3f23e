"""Tests of the tree, the component contract, eviction and presence."""
