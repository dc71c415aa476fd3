"""Clusters: what Kubernetes knows of the pods, and the few objects that are changed there."""
