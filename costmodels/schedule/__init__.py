"""Pipeline schedules: orders of actions, micro-batches in flight, the simulation of a step."""
