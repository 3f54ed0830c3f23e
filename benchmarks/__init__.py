"""Benchmarks of the cache, run by `banyankv bench`: one benchmark a file, ratios from one run."""
