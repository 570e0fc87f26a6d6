"""Services of the host: processes, devices, files, terminals and timing."""
