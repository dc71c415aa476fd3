"""Weightshift: zero-downtime model releases under live traffic."""
