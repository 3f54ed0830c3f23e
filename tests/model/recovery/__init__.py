"""Crashes with leases live: whatever actor crashes, at whatever message, engines go on."""
