"""The heart: a thread's chain, its steps, and its life between them."""
