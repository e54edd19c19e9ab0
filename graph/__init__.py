"""The order of the agents' work: state, nodes, routing, and who answers their questions."""
