"""Pure, typed computation: scenario, hardware, cost model, and what later parts add."""
