"""Tests of the cache as an engine uses it, one folder's worth of small scenes."""
