"""What an engine embeds: configuration, assembly, the cache and its leases."""
