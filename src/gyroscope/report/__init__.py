"""From run results to figures and tables."""
