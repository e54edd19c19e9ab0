"""The plan space: every legal plan of a scenario, searched exhaustively with the cost model."""
