"""Models of other formats, as importers read them: their inputs, a run, their scores, agreement."""
