"""Pure, typed Python that computes: from scenario and hardware to plans, traces, knowledge and jobs."""
