"""Workloads, and the replay that proves every reused byte of one."""
