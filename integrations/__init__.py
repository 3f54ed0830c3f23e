"""Model libraries that drive a cache; Transformers first. Needs the extra `transformers`."""
