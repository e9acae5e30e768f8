"""Components of the package, one file per family; each file begins with the base class of its family."""
