"""The actor that coordinates a cache, and the parts it is made of."""
