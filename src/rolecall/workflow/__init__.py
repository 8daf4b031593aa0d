"""The workflow language, the gallery of ready-made workflows, and who may start those of a pack."""
