"""Pure cost models: a model, a layout and a cluster in; seconds and bytes out. No torch, no files,
no printing.
"""
