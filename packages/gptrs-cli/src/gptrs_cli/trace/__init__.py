"""`gptrs trace`: its options, the reference that it compares with, and its reports."""
