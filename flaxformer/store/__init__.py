"""A study's folder of results: rows with digests, leases, declarations, provenance, status; no training."""
