"""The content-addressed store: `Store` provides the operations, and a backend keeps the bytes."""
