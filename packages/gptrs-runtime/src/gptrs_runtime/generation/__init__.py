"""How text is generated: what is asked, what shapes the logits, one text, and many at once."""
