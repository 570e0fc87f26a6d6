"""What this machine has and how programs run on it: processes, devices, files, terminals, timing."""
