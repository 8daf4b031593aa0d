"""Any other host."""
