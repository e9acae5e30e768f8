"""What a folder of results says: tables, figures and pages, from what is on disk alone."""
