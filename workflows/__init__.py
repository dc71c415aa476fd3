"""Workflows: they decide, durably; they never touch the outside world."""
