"""One model over several processes of which the first leads: others do after it what it does."""
