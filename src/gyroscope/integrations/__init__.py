"""Adapters to other frameworks: each module or subpackage is the only place that imports its framework."""
