"""How fast it is, measured side by side: rules against torch and against other libraries, a run against its floor.

Only ratios mean something on a machine that others use too, so whatever is compared runs in turn, in one process.
"""
