"""One layout: the stages of its pipeline, the seconds of a step, each rank's memory."""
