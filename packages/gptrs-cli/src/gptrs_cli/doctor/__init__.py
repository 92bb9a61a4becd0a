"""The work of `gptrs doctor`: checks of the installation, the machine and the startup time."""
