"""The workflow language, the gallery of ready-made workflows, and the rules that allow workflows of a pack to start."""
