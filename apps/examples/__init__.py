"""Short programs that show one thing each."""
