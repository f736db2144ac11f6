"""The command line: one file per subcommand, parsing and printing only."""
