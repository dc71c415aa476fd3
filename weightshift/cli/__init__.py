"""The `weightshift` command: parses and prints, nothing else."""
