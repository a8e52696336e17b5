"""meshplan: the fastest parallel layout that fits, found, proved and confirmed.

The four packages lie at the root of the repository and are imported as `meshplan.planner` and so
on: links in this folder lead to them, so an install puts one name into site-packages.
"""
