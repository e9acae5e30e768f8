"""The package's own components, one file per family; each file begins with the interface of its family."""
