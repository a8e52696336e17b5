"""Touches hardware: measurements, the training engine, the dry run, launchers, framework configs.
"""
