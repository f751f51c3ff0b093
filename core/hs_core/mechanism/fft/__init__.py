"""FFT (ICS'25): the costs of a round, how many GPUs it can use, and the program that decides it."""
