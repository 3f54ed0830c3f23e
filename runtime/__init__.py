"""What an engine embeds: configuration, assembly, the cache, leases and the command line."""
