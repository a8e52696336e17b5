"""What training frameworks log: step times, losses and memory, in one form."""
