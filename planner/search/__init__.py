"""The search over all layouts of a space, and its proof.

search          what is asked, and the first plans of the closed form
best_simulated  the half under the event simulation
result          what a search answers with, or that nothing fits
footprint       does it fit at all: the fewest GPUs, and why nothing fits
rows            prices and bounds of the space's rows, and which need not be looked at
closed_form     first plans, which rows are likely fast, and how they are run
simulation      the best layout under the event simulation, with a proof
held_memory     what fits although its priced memory, a bound, does not
row_layout      the layout that a plan makes of a row
found           the best layout of each kind
progress        what a running search tells of itself
"""
