"""Pure cost models: a model, a layout and a cluster in; seconds and bytes out. No torch, no files,
no printing.

    model       shapes of models, configurations of families, parameters
    operations  a layer as one list of operations, from which all that follows is summed
    seconds     what an operation, a collective, a layer takes
    weights     what is sent of weights and gradients
    memory      what a rank keeps
    schedule    orders of actions, the simulation of a step
    step        all of it together: the price of one layout, or of a million
"""
