"""Cuts into stages of one layout under the event simulation: which may be faster, their mixes of
recomputation, layers moved between chunks, and what looking costs of the budget of the search.
"""
