"""The subcommands of the command line, one file each: `add` declares its options, the rest does it."""
