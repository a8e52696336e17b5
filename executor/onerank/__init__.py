"""One rank of a plan for real: its own program, tensors and kernels; what others would send is
answered here, and takes the time that the profile predicts.
"""
