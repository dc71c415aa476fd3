"""What a release did, from its evidence: one document, as JSON and as one HTML page."""
