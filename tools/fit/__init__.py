"""Learning the cost model's constants from published measurements: `make fit`."""
