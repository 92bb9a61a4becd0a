"""One model over several processes: the first one leads, and the others follow it."""
