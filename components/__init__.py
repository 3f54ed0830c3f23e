"""The tree and what its nodes carry: topology, coverage, locks, eviction. No trio, torch or I/O."""
