"""What `gptrs doctor` finds out: checks of the installation, the machine, the time to start."""
