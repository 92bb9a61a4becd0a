"""Which page of the key/value cache belongs to which text: bookkeeping without any tensor."""
