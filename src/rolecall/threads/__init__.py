"""The core of Rolecall: threads, their steps, and the engine that runs them."""
