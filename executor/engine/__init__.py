"""The native training engine: a plan's layout run with PyTorch's process groups and collectives.

`train` is the program of one rank; `engine` builds the rank's part of the model and runs steps;
`legality` says, without torch, which layouts it can run.
"""
