"""Tasks in which an action depends on what was seen thousands of steps ago, and their episodes on disk."""
