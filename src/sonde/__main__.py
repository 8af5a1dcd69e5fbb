"""`python -m sonde`: the same as the `sonde` command, also under torchrun."""

from sonde.cli.main import main

main()
