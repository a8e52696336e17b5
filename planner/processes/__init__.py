"""How a command uses the machine: its processes and how they end, memory, shared libraries."""
