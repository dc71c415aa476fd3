"""Meshes: they split traffic exactly as told, and are read back."""
