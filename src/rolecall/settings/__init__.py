"""The environment, the configuration, and the reader for files that people write."""
