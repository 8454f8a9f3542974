"""Talk to a host: ssh and srun, the program there, and its protocol."""
