"""The bytes: pools and allocators, layouts, copies between L1 and L2, and L3 with its stores."""
