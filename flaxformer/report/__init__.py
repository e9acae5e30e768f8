"""Reports of a folder of results: tables, figures and pages, from the files of the folder alone."""
