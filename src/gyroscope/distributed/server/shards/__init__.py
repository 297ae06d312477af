"""A server whose rows are split by columns over several processes: a coordinator, and shards that it starts."""
