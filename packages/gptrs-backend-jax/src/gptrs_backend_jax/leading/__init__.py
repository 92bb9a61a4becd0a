"""One model over several processes: the first one leads, and the others do what it does."""
