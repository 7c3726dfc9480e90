"""Many rounds between processes: one cloud, n agents, each with its own secrets."""
