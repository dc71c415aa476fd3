"""The registry's rows in PostgreSQL, one module per topic, each working in the caller's transaction."""
