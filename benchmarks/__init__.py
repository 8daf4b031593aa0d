"""How fast, how flat, how small: measured against a floor in the same run. Not tests: nothing here fails."""
