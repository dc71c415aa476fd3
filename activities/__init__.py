"""Activities: they do what the workflow decides, one class per outside system, idempotent and fenced."""
