"""banyankv: an embeddable prefix cache for hybrid language models."""
