"""Reports of a folder of results: tables, figures and pages, from what is on disk alone."""
