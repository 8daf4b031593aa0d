"""The environment, the configuration, notifications, and the reader for files that people write."""
