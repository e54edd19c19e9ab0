"""The nodes of the graph: one file, one function, one name each. They meet in the state only."""
