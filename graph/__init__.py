"""The order of the agents' work. Filled by the "Agents and knowledge" issue."""
