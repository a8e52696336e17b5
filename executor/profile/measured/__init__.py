"""What is measured: products, attention, memory, collectives, and two of them at once.

Each of `matmul`, `attention`, `memory`, `collectives` and `interference` plans its measurements;
the other modules are what these share.
"""
