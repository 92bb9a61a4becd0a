"""The conformance kit: what a backend must do, stated as cases that it can be run on."""
