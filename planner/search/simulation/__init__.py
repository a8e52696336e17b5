"""The search and its proof under the event simulation."""
