"""Adapters to other frameworks: each subpackage is the only place that imports its framework."""
