"""What people configure."""
