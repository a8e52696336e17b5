"""From a question to a plan and its reasons."""
