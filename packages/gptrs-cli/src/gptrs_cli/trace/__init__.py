"""`gptrs trace`: its options, references and reports."""
