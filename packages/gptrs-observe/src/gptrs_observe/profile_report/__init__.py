"""`report.html`: a profile as one page that needs no network, no library and no JavaScript."""
