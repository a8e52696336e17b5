"""The local page over the planner: a layout priced at each move of a slider, solved on demand."""
