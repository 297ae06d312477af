"""What every other package stands on: errors, random streams, the registry of specs, the paper's theory, the clock."""
