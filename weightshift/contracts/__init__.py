"""Frozen messages and enums that cross a process boundary. Pure: no I/O, light imports only."""
