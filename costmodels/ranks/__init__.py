"""One rank of a layout, or of each layout of a grid: what it computes, sends and keeps."""
