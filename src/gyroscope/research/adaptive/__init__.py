"""Momentum placements and factors that adapt to the trajectory; docs/beyond/placements.md and adapting.md."""
