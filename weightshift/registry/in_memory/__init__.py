"""The registry in memory, one module per topic, as `weightshift.registry.postgres` is."""
