"""The control plane's truth: artifacts, targets, reports, releases and the audit chain."""
