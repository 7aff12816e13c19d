"""Loads the suite's pytest plugin in a checkout."""

pytest_plugins = ["conformance.plugin"]
