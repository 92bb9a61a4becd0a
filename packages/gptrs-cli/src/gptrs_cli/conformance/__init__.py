"""`gptrs conformance`: its options, its output, the reports on disk."""
