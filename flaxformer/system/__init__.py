"""Files, digests, errors, wording, start-up and identity of user code: what needs no array."""
