"""What a job says of its script: Slurm's arrays, and documents that hold a command."""
