"""Breaks lines of the product, and finds out whether the tests notice: `python -m tests.mutations`."""
