"""Asks and answers: search space, search with proof, plan files, reports and the command line."""
