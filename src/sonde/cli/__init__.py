"""The command line: one file per verb, each imported only when it is used."""
