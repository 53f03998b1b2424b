"""`python -m preheat`: the command line."""

from preheat.cli import main

main()
