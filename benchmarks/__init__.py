"""Measure speed side by side: rules against torch and other libraries, a run against its lower bound.

On a machine with other load only ratios mean something, so what is compared runs in turn, in one process.
"""
