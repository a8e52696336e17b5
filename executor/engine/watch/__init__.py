"""What is recorded of a step: times of phases, memory, the record of each step."""
