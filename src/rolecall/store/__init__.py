"""The content-addressed store: `Store` has the verbs, a backend keeps the bytes."""
