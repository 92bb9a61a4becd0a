"""Finds the instructions that two ways of running a program disagree about."""
