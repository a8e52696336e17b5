"""Data with a source per number: GPUs, clusters, engines, models, and what was measured on them.

Beside the data, each kind in a folder of its name:

    files     profiles' files: read within bounds, written whole
    errors    how far the cost model is off, learnt from runs that its constants had not seen
"""
