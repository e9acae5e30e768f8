"""Set-up of a process before JAX starts."""
