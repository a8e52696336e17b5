"""Pure cost models: a model, a layout and a cluster in; seconds and bytes out. No torch, no files,
no printing.

    model       shapes of models, configurations of families, parameters
    operations  a layer as one list of operations, from which all that follows is summed
    seconds     what an operation, a collective, a layer takes
    weights     what is sent of weights and gradients
    memory      what a rank keeps
    schedule    orders of actions, the simulation of a step
    ranks       what one rank computes, sends and keeps, whatever layers its stage holds
    prices      what layers cost in a million layouts at once
    step        one layout: its stages, the seconds of a step, the memory of each rank
"""
