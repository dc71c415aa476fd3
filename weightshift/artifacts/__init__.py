"""Artifacts: manifests, their storage layout and the object stores that hold them."""
