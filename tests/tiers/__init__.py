"""Tests of the page tiers, of what is below them, and of their actors."""
