"""Experiments beyond the paper, one folder each. The core never imports this package."""
