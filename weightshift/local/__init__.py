"""A complete Weightshift on one machine: embedded servers, our own processes, and their supervision."""
