"""The process that serves a model: fetches, verifies, swaps, answers and drains."""
